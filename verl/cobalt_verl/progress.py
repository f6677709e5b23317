"""Phase lines, such as `[progress] step 3 of 16, update, mini-batch 1, micro-batch 40 of 64`.

The trainer's process says the phase and its samples, the first rank of the workers its micro-batches; each prints the
latest line, every `LINE_SECONDS` at most, and Ray brings it to the launcher from any node (`cobalt.training.watching`).
"""

import os
import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

PHASE = "cobalt_phase"  # key of a batch: what `begin` returned
LINE_SECONDS = 30.0


class _Process:
    def __init__(self) -> None:
        self.phase, self.line, self.batches = "", "", 0
        self.changed = threading.Event()
        threading.Thread(target=self._print, daemon=True).start()

    def _print(self) -> None:
        while self.changed.wait():
            self.changed.clear()
            os.write(1, f"[progress] {self.line}\n".encode())  # whole, beside the lines of other threads
            time.sleep(LINE_SECONDS)


_process = cache(_Process)


def begin(phase: str, step: int = 0, steps: int = 0) -> str:
    """Say that a phase begins (steps 0: their number is not known yet); returns the words for step and phase."""
    process = _process()
    process.phase, process.batches = f"step {step} of {steps}, {phase}" if steps else phase, 0
    add("")
    return process.phase


def add(counts: str) -> None:
    """Say how far the phase is, in counts alone: a run that waits for ever must not find new words."""
    process = _process()
    before, process.line = process.line, f"{process.phase}, {counts}" if counts else process.phase
    if process.line != before:
        process.changed.set()


class _Counted(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number, micro_batch in enumerate(super().__iter__(), 1):
            add(f"mini-batch {_process().batches}, micro-batch {number} of {len(self)}")
            yield micro_batch


def prepare_micro_batches(data: Any, *arguments: Any, **keywords: Any) -> Any:
    """As veRL's for its FSDP engines; the first rank says which micro-batch of the list it works on.

    Ranks meet at every layer of every micro-batch, so that each waits for the one with the most tokens. In an update of
    several ranks each works on its micro-batches by their number of tokens, the largest first. Their samples, and so
    the terms of the loss, stay; the outputs of an update are not put back into the order of its samples.
    """
    import torch
    from verl.utils import tensordict_utils
    from verl.workers.engine import utils

    micro_batches, indices = utils.prepare_micro_batches(data, *arguments, **keywords)
    if "advantages" in data.keys() and indices is None and torch.distributed.get_world_size() > 1:  # noqa: SIM118
        micro_batches = sorted(micro_batches, key=lambda part: part["input_ids"].values().numel(), reverse=True)
    if torch.distributed.get_rank():
        return micro_batches, indices
    phase = tensordict_utils.get_non_tensor_data(data=data, key=PHASE, default=_process().phase)
    if phase != _process().phase:
        begin(phase)
    _process().batches += 1
    return _Counted(micro_batches), indices
