"""Training on judged responses with veRL's own engine: no sampling, no judge, no Ray (arXiv 2605.28409).

Each rank runs this program: `torchrun -m cobalt_verl.trainers.offline CONFIG.yaml STEP`. The configuration is complete
(`cobalt.training.offline` composed it); STEP is the checkpoint to go on from. A step takes `data.train_batch_size`
groups in an order that the seed and the epoch decide, so that a run which goes on from a checkpoint trains on what is
left; what an epoch leaves over goes into the first step of the next. The log-probs of the starting policy are computed
once, before the first step, and kept in the run's folder.
"""

import ctypes
import signal
import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from omegaconf import OmegaConf
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group
from verl.utils.tracking import Tracking
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from cobalt.reward.offline import OfflineSettings
from cobalt.stage.atomic import replacing
from cobalt.training import run_folder
from cobalt.training.offline_tokens import RowIndex, TokenGroup, load_groups, share
from cobalt_verl import progress
from cobalt_verl.losses.offline import offline_loss
from cobalt_verl.metrics_file import add_metrics_file
from cobalt_verl.offline_batch import batch, response_values

_ROUNDING = 1e-9
"""Advantages that are nearer to one another than this differ by rounding."""

LogProbs = npt.NDArray[np.float32]


class OfflineTrainer:
    """One rank of a training run by a whole configuration (`cobalt_verl/config/offline.yaml`), in a process group."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._settings = OfflineSettings(**config.offline)
        self._steps = 0
        self._begin("start", 0)
        transformer_impl.prepare_micro_batches = progress.prepare_micro_batches
        model = omega_conf_to_dataclass(config.model)
        optimizer = omega_conf_to_dataclass(config.optim)
        self._worker = TrainingWorker(
            config=TrainingWorkerConfig(
                model_type="language_model",
                model_config=model,
                engine_config=omega_conf_to_dataclass(config.engine),
                optimizer_config=optimizer,
                checkpoint_config=omega_conf_to_dataclass(config.checkpoint),
                profiler_config=omega_conf_to_dataclass(config.profiler),
            )
        )
        self._worker.set_loss_fn(partial(offline_loss, self._settings))
        self._engine = self._worker.engine
        self._rank: int = self._engine.get_data_parallel_rank()
        self._ranks: int = self._engine.get_data_parallel_size()
        load = partial(
            load_groups,
            tokenizer=model.tokenizer,
            max_length=config.data.max_length,
            thinking=config.data.chat_template_thinking,
        )
        self._train = load(Path(config.data.train_files), settings=self._settings)
        # Whatever is trained on, all responses are looked at, so that the figures of all estimators compare.
        self._validation = (
            load(Path(config.data.val_files), settings=OfflineSettings()) if config.data.val_files else []
        )
        most = len(self._train) * config.trainer.total_epochs // config.data.train_batch_size
        self._steps = min(config.trainer.total_training_steps or most, most)
        optimizer.total_training_steps = self._steps
        self._worker.reset()
        self._output = Path(config.trainer.default_local_dir).parent
        self._tracking = None
        if self._is_first:
            names = config.trainer.project_name, config.trainer.experiment_name
            self._tracking = Tracking(*names, list(config.trainer.logger), OmegaConf.to_container(config, resolve=True))
            add_metrics_file(self._tracking.logger, self._output)

    @property
    def _is_first(self) -> bool:
        return bool(torch.distributed.get_rank() == 0)

    def fit(self, step: int) -> None:
        """Train to the end, from the checkpoint of a step on; 0: from the beginning."""
        exit_code = 1
        try:
            self._train_from(step)
            exit_code = 0
        finally:
            if self._tracking is not None:
                self._tracking.finish(exit_code)

    def _train_from(self, step: int) -> None:
        self._begin("log-probs of the starting policy", step)
        start_of_validation = self._start("validation", self._validation)
        start_of_training = self._start("train", self._train) if self._settings.needs_start else None
        if step:
            self._engine.load_checkpoint(str(run_folder.checkpoint(self._output, step) / "actor"))
        elif self._validation:
            self._log(0, self._validated(start_of_validation, 0))
        while step < self._steps:
            step += 1
            began = time.monotonic()
            indices = self._groups_of(step)
            self._begin("update", step)
            metrics = self._updated(indices, start_of_training)
            metrics["timing_s/step"] = time.monotonic() - began
            if self._validation and self._due(step, self._config.trainer.test_freq):
                metrics |= self._validated(start_of_validation, step)
            if self._due(step, self._config.trainer.save_freq):
                self._save(step, metrics)
            self._log(step, metrics)

    def _due(self, step: int, every: int) -> bool:
        return step == self._steps or (every > 0 and step % every == 0)

    def _begin(self, phase: str, step: int) -> None:
        """Report a phase; the first rank does it for all."""
        if self._is_first:
            progress.begin(phase, step, self._steps)

    def _groups_of(self, step: int) -> list[int]:
        """Groups that a step trains on; a step may end one epoch and begin the next."""
        size, groups = self._config.data.train_batch_size, len(self._train)
        order = partial(_epoch_order, self._config.data.seed, groups)
        return [int(order(number // groups)[number % groups]) for number in range((step - 1) * size, step * size)]

    def _updated(self, indices: Sequence[int], start: Sequence[Sequence[LogProbs]] | None) -> dict[str, float]:
        """One update of the policy on some groups; what is known of it."""
        groups = [self._train[index] for index in indices]
        tokens = [row.length for group in groups for row in group]
        counts = {
            "training/responses": float(len(tokens)),
            "training/tokens": float(sum(tokens)),
            "training/response_tokens": float(sum(len(row.response) for group in groups for row in group)),
        }
        if not tokens:  # nothing to learn from, on any rank: the policy stays, and the schedule goes on
            return counts | {"actor/lr": float(self._engine.lr_scheduler_step())}
        mine = share(self._train, indices, self._rank, self._ranks)
        values = None if start is None else [start[index.group][index.row] for index in mine]
        data = self._tensors(self._train, mine, values)
        tensordict_utils.assign_non_tensor(
            data, update_lr_scheduler=True, global_token_num=tensordict_utils.NonTensorData(tokens)
        )
        counts["training/equal_groups"] = equal_groups(groups)
        metrics = tensordict_utils.get(self._worker.train_batch(data=data), "metrics")
        named = {name: f"actor/{name}" for name in ("loss", "grad_norm", "lr")}
        return {named.get(name, name): float(np.mean(value)) for name, value in metrics.items()} | counts

    def _tensors(
        self, groups: Sequence[TokenGroup], indices: Sequence[RowIndex], start: Sequence[LogProbs] | None = None
    ) -> Any:
        config = self._config.data
        rows = [groups[index.group][index.row] for index in indices]
        return tensordict_utils.get_tensordict(
            tensor_dict=batch(rows, start, [index.counts for index in indices]),
            non_tensor_dict={
                "temperature": 1.0,
                "use_remove_padding": self._config.model.use_remove_padding,
                "use_dynamic_bsz": True,
                "max_token_len_per_gpu": config.max_token_len_per_gpu,
                "pad_mode": "no_padding",
                "global_batch_size": config.train_batch_size,
            },
        )

    def _log_probs(self, groups: Sequence[TokenGroup]) -> list[list[LogProbs]]:
        """The policy's log-probs of each response's tokens, computed by all ranks, on each of them."""
        size: int = self._config.data.train_batch_size * self._ranks
        own: dict[tuple[int, int], LogProbs] = {}
        for begin in range(0, len(groups), size):
            if self._is_first:
                progress.add(f"{begin:,} of {len(groups):,} groups")
            indices = share(groups, range(begin, min(begin + size, len(groups))), self._rank, self._ranks)
            if not indices:
                continue
            data = self._tensors(groups, indices)
            tensordict_utils.assign_non_tensor(data, compute_loss=False)
            for index, values in zip(indices, self._worker.infer_batch(data)["log_probs"].unbind(), strict=True):
                if index.counts:
                    own[index.group, index.row] = response_values(groups[index.group][index.row], values)
        gathered = [own]
        if self._ranks > 1:
            gathered = [{} for _ in range(self._ranks)]
            torch.distributed.all_gather_object(gathered, own, self._engine.get_data_parallel_group())
        merged = {index: values for part in gathered for index, values in part.items()}
        return [[merged[at, row] for row in range(len(group))] for at, group in enumerate(groups)]

    def _start(self, name: str, groups: Sequence[TokenGroup]) -> list[list[LogProbs]]:
        """The log-probs under the starting policy, from the run's folder if they are there. Call it before training."""
        path = self._output / f"start_{name}.npy"
        if not path.exists():
            values = self._log_probs(groups)
            if self._is_first:
                flat = np.concatenate([value for group in values for value in group] or [np.zeros(0, np.float32)])
                with replacing(path) as handle:
                    np.save(handle, flat)
            torch.distributed.barrier()
            return values
        lengths = [len(row.response) for group in groups for row in group]
        parts = iter(np.split(np.load(path), np.cumsum(lengths)[:-1]))
        return [[next(parts) for _ in group] for group in groups]

    def _validated(self, start: Sequence[Sequence[LogProbs]], step: int) -> dict[str, float]:
        """Metrics of the policy on the responses of the validation groups."""
        self._begin("validate", step)
        return validation_metrics(self._validation, self._log_probs(self._validation), start)

    def _save(self, step: int, metrics: dict[str, float]) -> None:
        """Write a checkpoint; it counts as whole when it is named as the last. Then older ones are removed."""
        self._begin("checkpoint", step)
        folder = run_folder.checkpoint(self._output, step) / "actor"
        self._engine.save_checkpoint(local_path=str(folder), global_step=step)
        torch.distributed.barrier()
        if self._is_first:
            run_folder.keep_metrics(self._output, step, metrics)
            run_folder.name_last(self._output, step)
            run_folder.prune(self._output, self._config.trainer.max_ckpt_to_keep)

    def _log(self, step: int, metrics: dict[str, float]) -> None:
        if self._tracking is not None:
            self._tracking.log(metrics, step)


@cache
def _epoch_order(seed: int, count: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def equal_groups(groups: Sequence[TokenGroup]) -> float:
    """The share of groups whose rows all have the same advantage, so that they hold no contrast to learn.

    Groups without a row do not count; at least one must have one. With the estimator sft, which compares no rewards,
    the share is 1.
    """
    advantages = [[row.advantage for row in group] for group in groups if group]
    return float(np.mean([max(values) - min(values) < _ROUNDING for values in advantages]))


def validation_metrics(
    groups: Sequence[TokenGroup], now: Sequence[Sequence[LogProbs]], start: Sequence[Sequence[LogProbs]]
) -> dict[str, float]:
    """Means over the validation groups' responses.

    Args:
        groups: The groups.
        now: The policy's log-probs of each response's tokens.
        start: The starting policy's.

    Returns:
        `validation/accepted_log_prob` and `validation/other_log_prob`, the mean of a token (nats; the second only
        where there are such responses); `validation/kl`, the mean of exp(l - l0) - (l - l0) - 1 of a token. On samples
        of the starting policy (temperature 1) that is an unbiased estimate of KL(start || policy).
    """
    rows = [row for group in groups for row in group]
    values = [value for group in now for value in group]
    change = np.concatenate(values).astype(np.float64) - np.concatenate([value for group in start for value in group])
    metrics = {"validation/kl": float((np.exp(change) - change - 1).mean())}
    for name, wanted in (("accepted", True), ("other", False)):
        chosen = [value for row, value in zip(rows, values, strict=True) if row.accepted is wanted]
        if chosen:
            metrics[f"validation/{name}_log_prob"] = float(np.concatenate(chosen).mean())
    return metrics


def main(path: str, step: int) -> None:
    """Train by the configuration in the file, from a step on."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    config = OmegaConf.load(path)
    OmegaConf.set_struct(config, True)
    initialize_global_process_group()
    try:
        OfflineTrainer(config).fit(step)
    finally:
        destroy_global_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
