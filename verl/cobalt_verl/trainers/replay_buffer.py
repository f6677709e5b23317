"""A replay buffer that stops the run at a failed sample; veRL's would train on the rest of the prompt's group.

A sample fails when its generation or its reward raises, the latter after the judge failed at every attempt.
"""

from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from cobalt_verl import progress

_POLL_SECONDS = 0.2  # veRL's 2 s are a fifth of a step of the pocket scale


class StrictReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # veRL is not typed
    """veRL's buffer of the synchronous trainer, which looks more often and stops at a failed group."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.poll_interval = _POLL_SECONDS
        self.samples_of_prompt: dict[str, int] = {}
        """Number of samples that a prompt has, by partition ("train", "val"); the trainer sets it."""
        self._awaited = ""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Wait for a batch, as veRL does, and report meanwhile how many samples are there."""
        self._awaited = partition_id
        result: tuple[KVBatchMeta, dict[str, Any]] = super().sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        return result

    def _sync_metadata_from_transfer_queue(self) -> None:
        super()._sync_metadata_from_transfer_queue()
        failed = sum(len(keys) for keys in self.failure_keys.values())
        if failed:
            raise RuntimeError(f"{failed} prompts have a sample that failed")  # the launcher says why
        rows = self.partitions[self._awaited]  # a trajectory of several turns may have several
        samples = len({key.rsplit("_", 1)[0] for key in rows})
        samples_of = len(self.prompt_global_steps[self._awaited]) * self.samples_of_prompt.get(self._awaited, 1)
        progress.add(f"{samples:,} of {samples_of:,} samples")

    def _materialize_batch(self, partition_id: str, selected_prompt_uids: list[str], *arguments: Any) -> KVBatchMeta:
        """The batch in the order of prompts and samples; veRL's is in order of completion, which differs each time."""
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, *arguments)
        position = {uid: number for number, uid in enumerate(self.prompt_global_steps[partition_id])}

        def order(index: int) -> tuple[int, ...]:
            uid, *numbers = batch.keys[index].split("_")
            return position[uid], *map(int, numbers)

        batch.reorder(sorted(range(len(batch.keys)), key=order))
        return batch
