"""veRL's worker with phase lines and a longer limit for what its ranks do together.

A module of its own, because workers need nothing of what the trainer imports.
"""

from typing import Any

from verl.utils import distributed
from verl.workers import engine_workers
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker

from cobalt_verl import progress

GROUP_SECONDS = 7200
"""Seconds that a rank waits for the others. Torch's ten minutes end a run whose ranks write a checkpoint of 100 GB to a
slow disk; a run that hangs is ended by the launcher before (`cobalt.training.watching`)."""


def initialize_process_group(timeout_second: int | None = None, backend: str | None = None) -> None:
    """As veRL's, which leaves the limit to torch where none is given and has no setting for it."""
    distributed.initialize_global_process_group_ray(timeout_second or GROUP_SECONDS, backend)


class ReportingWorker(ActorRolloutRefWorker):  # type: ignore[misc]  # veRL is not typed
    """veRL's worker, whose engines say which micro-batch they work on."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        transformer_impl.prepare_micro_batches = progress.prepare_micro_batches
        engine_workers.initialize_global_process_group_ray = initialize_process_group
        super().__init__(*arguments, **keywords)
