"""VeRL's synchronous trainer with three additions: the average of the loss, reward metrics, a metrics file.

`cobalt.loss_agg` chooses the average. The parts of the reward, which veRL reports in validation only, become training
metrics. The metrics file is appended to; veRL's own file logger begins a new file at every start.
"""

from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from cobalt.training.templates import opened_by_template
from cobalt_verl.episodes import last_keys
from cobalt_verl.losses.loss_agg import worker_loss
from cobalt_verl.metrics_file import add_metrics_file


class CobaltTrainer(PPOTrainerSync):  # type: ignore[misc]  # veRL is not typed
    """See the module."""

    def on_init_end(self) -> None:
        """Check that the reward knows how responses begin, and give the workers the loss of `cobalt.loss_agg`.

        Raises:
            UserError: the chat template and the reward's setting disagree; the launcher, which checks this before,
                may have had no tokenizer.
        """
        opened_by_template(self.tokenizer, self.config)
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

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *arguments: Any, **keywords: Any) -> None:
        super()._compute_metrics(batch, metrics, *arguments, **keywords)
        real = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        keys = last_keys(real)  # all rows of a trajectory have its reward
        fields = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        parts = [extra["reward_extra_info"] for extra in list(fields["extra_fields"])]
        for name in parts[0]:
            metrics[f"reward/{name}"] = float(np.mean([part[name] for part in parts]))
