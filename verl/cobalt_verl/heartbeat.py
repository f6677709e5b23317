"""Signs of work: each process of veRL writes what it is doing into a small file of its own in the run's folder.

The launcher sets `COBALT_HEARTBEAT` to that folder, reads the files, sums them up and says how far the run is
(`cobalt.training.heartbeat`). Without the variable nothing is written. To report costs a dictionary: a thread of its
own writes the file, at most once a second, so a slow disk delays no work, and a disk that refuses is ignored.
"""

import atexit
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cobalt.training.heartbeat import HEARTBEAT_VARIABLE

_INTERVAL = 1.0
"""Seconds between two writes of one process."""

_COUNTED = ("batch", "micro_batch", "micro_batches", "samples", "samples_of", "tokens")

Fields = Mapping[str, Any]


class _Writer:
    """The file of this process and the thread that writes it."""

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        self._host = socket.gethostname()
        self._path = Path(folder, f"{self._host}-{self.pid}.json")
        self.fields: Fields = {}
        self._changed = threading.Event()
        self._writing = threading.Lock()
        atexit.register(self._write_last)
        threading.Thread(target=self._write_changes, name="heartbeat", daemon=True).start()

    def set(self, fields: Fields) -> None:
        """Replace what the process says; the thread never sees a dictionary that changes."""
        if fields != self.fields:
            self.fields = fields
            self._changed.set()

    def _write_changes(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            with contextlib.suppress(OSError):
                self._write()
            time.sleep(_INTERVAL)

    def _write_last(self) -> None:
        if self._changed.is_set() and self.pid == os.getpid():
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        process = {
            "host": self._host,
            "pid": self.pid,
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),  # veRL sets it after the start of a process
        }
        part = self._path.with_suffix(".part")
        with self._writing:
            part.write_text(json.dumps({**process, **self.fields}), encoding="utf-8")
            part.replace(self._path)


_writer: _Writer | None = None


def begin(phase: str, step: int, **fields: int) -> None:
    """Say that this process begins a phase.

    What it counted in the phase before stays in the file, under `finished`, until the next step.

    Args:
        phase: What it does, in a word or two.
        step: The training step that the phase belongs to; 0: before the first one.
        fields: See `update`, and `steps`, how many training steps the run has (0: not known yet), which only the
            process that leads the others gives; `batches`, the number of mini-batches of the phase.
    """
    if writer := _writer_of_this_process():
        before = writer.fields
        finished = dict(before.get("finished", {})) if before.get("step") == step else {}
        counted = {name: value for name, value in before.items() if name in _COUNTED}
        if counted and before.get("step") == step:
            finished[before["phase"]] = counted
        writer.set({"phase": phase, "step": step, **fields, **({"finished": finished} if finished else {})})


def update(**fields: int) -> None:
    """Say how far this process is in the phase.

    Args:
        fields: `samples` done of `samples_of`, with their `tokens`; `micro_batch`, those done of the `micro_batches` of
            mini-batch number `batch`.
    """
    if writer := _writer_of_this_process():
        writer.set({**writer.fields, **fields})


def add_tokens(count: int) -> None:
    """Add to the tokens that this process has worked through in the phase."""
    if writer := _writer_of_this_process():
        writer.set({**writer.fields, "tokens": int(writer.fields.get("tokens", 0)) + count})


def _writer_of_this_process() -> _Writer | None:
    global _writer
    folder = os.environ.get(HEARTBEAT_VARIABLE)  # made by the launcher
    if not folder:
        return None
    if _writer is None or _writer.pid != os.getpid():  # a fork has neither the thread nor the name of the file
        _writer = _Writer(folder)
    return _writer
