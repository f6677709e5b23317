"""VeRL's synchronous trainer with an average of the loss, reward metrics, a metrics file, phase lines, checkpoints.

`cobalt.loss_agg` chooses the average. The parts of the reward, which veRL reports in validation only, become training
metrics, and so does the time that a step waited for rewards. The metrics file is appended to. Each phase of a step is
reported (`cobalt_verl.progress`). The rollouts of every k-th step are written (`cobalt_verl.rollouts`). A checkpoint
gets the metrics of its step, and older ones are removed only when it is whole (`cobalt.training.run_folder`).
"""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.engine_workers import ActorRolloutRefWorker

from cobalt.stage.errors import UserError
from cobalt.training import run_folder
from cobalt.training.templates import opened_by_template
from cobalt_verl import progress
from cobalt_verl.episodes import last_keys, prompt_of
from cobalt_verl.losses.loss_agg import worker_loss
from cobalt_verl.metrics_file import add_metrics_file, numbers
from cobalt_verl.reporting_worker import ReportingWorker
from cobalt_verl.rollouts import is_due, write_rollouts
from cobalt_verl.scoring import FEEDBACK, VERDICT_AT

logger = logging.getLogger(__name__)


class CobaltTrainer(PPOTrainerSync):  # type: ignore[misc]  # veRL is not typed
    """See the module."""

    # Until veRL has counted them.
    global_steps = 0
    total_training_steps = 0

    @property
    def _run(self) -> Path:
        """The run's folder."""
        return Path(self.config.trainer.default_local_dir).parent

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = super()._build_replay_buffer()
        rollout = self.config.actor_rollout_ref.rollout
        buffer.samples_of_prompt = {"train": rollout.n, "val": rollout.val_kwargs.n}
        groups = self.config.algorithm.filter_groups
        if groups.enable:  # veRL tells only a buffer of its own
            buffer.filter_groups_metric = self._resolve_filter_groups_metric()
            buffer.max_inflight_gen_batches = groups.max_inflight_gen_batches
            buffer.train_batch_size, buffer.gen_batch_size = self.config.data.train_batch_size, 1
        return buffer

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role, worker in self.role_worker_mapping.items():
            if worker.__ray_actor_class__ is ActorRolloutRefWorker:
                self.role_worker_mapping[role] = ray.remote(ReportingWorker)

    def on_init_end(self) -> None:
        """Check that the reward knows how responses begin, and give the workers the loss of `cobalt.loss_agg`.

        Raises:
            UserError: the chat template and the reward's setting disagree; the launcher, which checks this before,
                may have had no tokenizer.
        """
        opened_by_template(self.tokenizer, self.config)
        self._begin("weights to the engine")
        if (loss := worker_loss(self.config)) is not None:
            self.actor_rollout_wg.set_loss_fn(loss)
        super().on_init_end()

    # `fit` makes its loggers and then calls one of the next two, before anything is logged.

    def on_validate_begin(self) -> None:
        """Open the metrics file, if a validation comes first."""
        self._begin("validate")
        add_metrics_file(self.logger.logger, self._run)
        super().on_validate_begin()

    def on_train_begin(self) -> None:
        """Open the metrics file."""
        add_metrics_file(self.logger.logger, self._run)
        super().on_train_begin()

    def on_step_begin(self) -> None:
        """Report the first phase."""
        self._begin("generate")
        super().on_step_begin()

    def on_step_end(self) -> None:
        """Report the phase."""
        self._begin("weights to the engine")
        super().on_step_end()

    def _begin(self, phase: str, batch: KVBatchMeta | None = None) -> None:
        """Report a phase, and let the workers report it that are handed the batch."""
        words = progress.begin(phase, self.global_steps, self.total_training_steps)
        if batch is not None:
            batch.extra_info[progress.PHASE] = words

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._begin("log-probs", batch)
        return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._begin("reference", batch)
        return super()._compute_ref_log_prob(batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._begin("update", batch)
        return super()._update_actor(batch, metrics)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """As veRL; what the step leaves is kept for its checkpoint."""
        began = time.monotonic()
        batch = super().step(metrics, timing_raw)
        if is_due(self.global_steps, self.config.cobalt.rollout_every):
            try:
                write_rollouts(self._run, self.global_steps, batch, self.tokenizer.decode)
            except UserError as error:  # the run goes on without them
                logger.warning("the rollouts of step %d are missing: %s", self.global_steps, error)
        self._finished = batch, dict(metrics), {**timing_raw, "step": time.monotonic() - began}
        return batch

    def _save_checkpoint(self) -> None:
        batch, metrics, timing = self._finished
        epoch = (self.global_steps - 1) // self.steps_per_epoch
        self._compute_metrics(batch, metrics, timing, global_steps=self.global_steps, epoch=epoch)
        self._begin("checkpoint")
        run_folder.keep_metrics(self._run, self.global_steps, numbers(metrics))
        super()._save_checkpoint()
        run_folder.prune(self._run, self.config.cobalt.keep_checkpoints)

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *arguments: Any, **keywords: Any) -> None:
        self._begin("metrics")
        super()._compute_metrics(batch, metrics, *arguments, **keywords)
        real = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        keys = last_keys(real)  # all rows of a trajectory have its reward
        fields = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        parts = [extra["reward_extra_info"] for extra in list(fields["extra_fields"])]
        metrics.update(reward_metrics(parts, [prompt_of(key) for key in keys]))


def reward_metrics(parts: Sequence[Mapping[str, Any]], prompts: Sequence[str]) -> dict[str, float]:
    """The mean of each part of the rewards of a step, the share of equal groups, and the wait for the last rewards.

    Args:
        parts: Of each trajectory, at least one; all with the same names.
        prompts: Prompt that each trajectory answers.

    Returns:
        `reward/NAME`; `reward/equal_groups`, the share of prompts whose trajectories all have the same `score` to the
        last digit, so that GRPO learns nothing from them; if the parts say when they were computed (`VERDICT_AT`), also
        `timing_s/reward_wait`: the seconds of `timing_s/gen` from the end of the last response to the last verdict.
    """
    metrics = {
        f"reward/{name}": float(np.mean([part[name] for part in parts]))
        for name in parts[0]
        if name not in (VERDICT_AT, FEEDBACK)
    }
    if "score" in parts[0]:  # a reward function of the user's own may return a bare number
        scores: dict[str, set[float]] = defaultdict(set)
        for prompt, part in zip(prompts, parts, strict=True):
            scores[prompt].add(part["score"])
        metrics["reward/equal_groups"] = float(np.mean([len(of_prompt) == 1 for of_prompt in scores.values()]))
    if VERDICT_AT in parts[0]:
        last_response = max(part[VERDICT_AT] - part["judge_seconds"] for part in parts)
        metrics["timing_s/reward_wait"] = max(part[VERDICT_AT] for part in parts) - last_response
    return metrics
