"""Signs of work from veRL's FSDP engines: which micro-batch of how many, in every forward or backward pass.

The list of micro-batches that an engine walks through is made by one function of veRL, which is wrapped. The trainer
puts the step and the phase into the batch (`TAG`); without that, the process's own phase goes on.
"""

from collections.abc import Callable, Iterator
from typing import Any

from verl.utils import tensordict_utils
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker

from cobalt_verl import heartbeat

TAG = "cobalt_phase"
"""Key of a batch: the step and the phase, as `tag` makes it."""


def tag(step: int, phase: str) -> str:
    """The value of `TAG`."""
    return f"{step} {phase}"


def report_micro_batches() -> None:
    """Let the FSDP engines of this process report their micro-batches. A second call has no effect."""
    if not isinstance(transformer_impl.prepare_micro_batches, _Reporting):
        transformer_impl.prepare_micro_batches = _Reporting(transformer_impl.prepare_micro_batches)


class ReportingWorker(ActorRolloutRefWorker):  # type: ignore[misc]  # veRL is not typed
    """veRL's worker, whose engines report their micro-batches."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        report_micro_batches()
        super().__init__(*arguments, **keywords)


class _Reporting:
    """`prepare_micro_batches` of veRL with a list that reports how far the engine is with it."""

    def __init__(self, prepare: Callable[..., Any]) -> None:
        self._prepare = prepare
        self._tag = ""
        self._batch = 0

    def __call__(self, data: Any, *arguments: Any, **keywords: Any) -> Any:
        found = tensordict_utils.get_non_tensor_data(data=data, key=TAG, default="")
        if found and found != self._tag:
            step, phase = found.split(" ", 1)
            heartbeat.begin(phase, int(step))
            self._batch = 0
        self._tag = found
        self._batch += 1
        micro_batches, indices = self._prepare(data, *arguments, **keywords)
        heartbeat.update(micro_batch=0, micro_batches=len(micro_batches), **({"batch": self._batch} if found else {}))
        return _Walked(micro_batches), indices


class _Walked(list[Any]):
    """Micro-batches; each counts as done when the next one is asked for."""

    def __iter__(self) -> Iterator[Any]:
        for number, micro_batch in enumerate(super().__iter__(), 1):
            yield micro_batch
            heartbeat.add_tokens(micro_batch["input_ids"].numel())
            heartbeat.update(micro_batch=number)
