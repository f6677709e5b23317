"""VeRL's synchronous trainer with four additions: the average of the loss, reward metrics, a metrics file, checkpoints.

`cobalt.loss_agg` chooses the average. The parts of the reward, which veRL reports in validation only, become training
metrics. The metrics file is appended to; veRL's own file logger begins a new file at every start. A checkpoint gets the
metrics of its step, and older ones are removed only when it is whole (`cobalt.training.checkpoints`).
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from cobalt.training import checkpoints, run_folder
from cobalt_verl.episodes import last_keys
from cobalt_verl.losses.loss_agg import worker_loss
from cobalt_verl.metrics_file import add_metrics_file, numbers


class CobaltTrainer(PPOTrainerSync):  # type: ignore[misc]  # veRL is not typed
    """See the module."""

    def on_init_end(self) -> None:
        """Give the workers the loss that `cobalt.loss_agg` asks for."""
        loss = worker_loss(self.config)
        if loss is not None:
            self.actor_rollout_wg.set_loss_fn(loss)
        super().on_init_end()

    # `fit` makes its loggers and then calls one of the next two, before anything is logged.

    def on_validate_begin(self) -> None:
        """Open the metrics file, if a validation comes first."""
        self._open_metrics()
        super().on_validate_begin()

    def on_train_begin(self) -> None:
        """Open the metrics file."""
        self._open_metrics()
        super().on_train_begin()

    def _open_metrics(self) -> None:
        add_metrics_file(self.logger.logger)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """As veRL; what the step leaves is kept for its checkpoint."""
        began = time.monotonic()
        batch = super().step(metrics, timing_raw)
        self._finished = batch, dict(metrics), {**timing_raw, "step": time.monotonic() - began}
        return batch

    def _save_checkpoint(self) -> None:
        output = Path(self.config.trainer.default_local_dir).parent
        batch, metrics, timing = self._finished
        epoch = (self.global_steps - 1) // self.steps_per_epoch
        self._compute_metrics(batch, metrics, timing, global_steps=self.global_steps, epoch=epoch)
        checkpoints.keep_metrics(output, self.global_steps, numbers(metrics))
        super()._save_checkpoint()
        keep = self.config.cobalt.keep_checkpoints
        if keep is not None:
            best = run_folder.best_step(output)
            checkpoints.prune(output, keep, () if best is None else (best,))

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *arguments: Any, **keywords: Any) -> None:
        super()._compute_metrics(batch, metrics, *arguments, **keywords)
        real = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        keys = last_keys(real)  # all rows of a trajectory have its reward
        fields = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        parts = [extra["reward_extra_info"] for extra in list(fields["extra_fields"])]
        for name in parts[0]:
            metrics[f"reward/{name}"] = float(np.mean([part[name] for part in parts]))
