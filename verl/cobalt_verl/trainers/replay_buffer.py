"""A replay buffer that stops the run at a failed sample; veRL's would train on the rest of the prompt's group.

A sample fails when its generation or its reward raises, the latter after the judge failed at every attempt.
"""

import os
import time
from pathlib import Path
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from cobalt_verl import progress

FAILURE_FILE = "COBALT_FAILURE_FILE"
"""Environment variable: the file in which the reward function writes why it failed."""

_POLL_SECONDS, _LAST_POLL_SECONDS = 0.2, 0.02
_LAST_SHARE = 0.9
"""From this share of the samples on, the buffer looks more often: only the last ones are left to wait for."""
_REST = 5
"""For how many times as long as it looked the buffer waits then, if that is longer: many samples take long to list."""


class StrictReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # veRL is not typed
    """veRL's buffer of the synchronous trainer, which polls more often and stops at a failed group."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.poll_interval = _POLL_SECONDS
        self.samples_of_prompt: dict[str, int] = {}
        """How many samples a prompt has, by partition ("train", "val"); the trainer sets it."""
        self._awaited = ""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Wait for a batch, as veRL does, and report meanwhile how many samples are there."""
        self._awaited = partition_id
        found: tuple[KVBatchMeta, dict[str, Any]] = super().sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        return found

    def _sync_metadata_from_transfer_queue(self) -> None:
        began = time.monotonic()
        super()._sync_metadata_from_transfer_queue()
        took = time.monotonic() - began
        failed = sum(len(keys) for keys in self.failure_keys.values())
        if failed:
            path = Path(os.environ.get(FAILURE_FILE, ""))
            reason = path.read_text(encoding="utf-8").strip() if path.is_file() else "the log above has the reason"
            raise RuntimeError(f"{failed} prompts have a sample that failed: {reason}")
        rows = self.partitions[self._awaited]  # a trajectory of several turns may have several
        samples = len({key.rsplit("_", 1)[0] for key in rows})
        samples_of = len(self.prompt_global_steps[self._awaited]) * self.samples_of_prompt.get(self._awaited, 1)
        self.poll_interval = _POLL_SECONDS
        if samples >= _LAST_SHARE * samples_of:
            self.poll_interval = min(_POLL_SECONDS, max(_LAST_POLL_SECONDS, _REST * took))
        progress.add(f"{samples:,} of {samples_of:,} samples")

    def _materialize_batch(self, partition_id: str, selected_prompt_uids: list[str], *arguments: Any) -> KVBatchMeta:
        """The batch in the order of prompts and samples; veRL's is in order of completion, which differs each time."""
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, *arguments)
        place = {uid: number for number, uid in enumerate(self.prompt_global_steps[partition_id])}

        def order(item: tuple[str, Any]) -> tuple[int, ...]:
            uid, *numbers = item[0].split("_")
            return place[uid], *map(int, numbers)

        pairs = sorted(zip(batch.keys, batch.tags, strict=True), key=order)
        batch.keys, batch.tags = [key for key, _ in pairs], [tag for _, tag in pairs]
        return batch
