"""The trainer for rollouts of several turns, whose trajectories have one row or several.

In veRL a mini-batch is a number of rows. Trajectories of several rows would therefore make more updates a step than the
configuration asks for, and how many would change from step to step. Here a step has `data.train_batch_size` /
`actor.ppo_mini_batch_size` updates, as in single-turn training, each with as many rows as the others.
"""

import math
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta

from cobalt_verl.episodes import BATCH, METRICS, batch_rows
from cobalt_verl.trainers.sync import CobaltTrainer


class EpisodeTrainer(CobaltTrainer):
    """See the module; estimators see the turns and the outcomes of tests (`cobalt_verl.episodes.BATCH`)."""

    @property
    def _updates(self) -> int:
        return int(self.config.data.train_batch_size // self.config.actor_rollout_ref.actor.ppo_mini_batch_size)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """The number of rows is made a multiple of this by rows of padding, of which no token counts.

        Mini-batches need it (`_update_actor`), and micro-batches of a fixed number of rows.
        """
        policy = self.config.actor_rollout_ref
        parts = [self._updates * policy.rollout.n]
        if not policy.actor.use_dynamic_bsz:
            parts.append(self._updates * dp_size * policy.actor.ppo_micro_batch_size_per_gpu)
        for part in (policy.rollout, policy.ref):
            if not part.log_prob_use_dynamic_bsz and part.log_prob_micro_batch_size_per_gpu:
                parts.append(dp_size * part.log_prob_micro_batch_size_per_gpu)
        return math.lcm(dp_size, *map(int, parts))

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        actor, samples = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout.n
        configured = actor.ppo_mini_batch_size
        rows = len(batch.keys) // self._updates
        actor.ppo_mini_batch_size = rows // samples  # veRL multiplies it by the number of samples
        try:
            return super()._update_actor(batch, metrics)
        finally:
            actor.ppo_mini_batch_size = configured

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        shown = BATCH.set(batch_rows(batch.keys, batch.tags, list(fields["extra_fields"])))
        measured = METRICS.set(metrics)
        try:
            return super()._compute_advantage(batch, metrics)
        finally:
            BATCH.reset(shown)
            METRICS.reset(measured)
