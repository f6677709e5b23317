"""veRL's worker with phase lines; a module of its own, because workers need nothing of what the trainer imports."""

from typing import Any

from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker

from cobalt_verl import progress


class ReportingWorker(ActorRolloutRefWorker):  # type: ignore[misc]  # veRL is not typed
    """veRL's worker, whose engines say which micro-batch they work on."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        transformer_impl.prepare_micro_batches = progress.prepare_micro_batches
        super().__init__(*arguments, **keywords)
