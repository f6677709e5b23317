"""Updates of a policy by veRL on one rank, as training makes them, for tests/test_method.py.

    python tests/verl_updates.py CONFIG.yaml FOLDER

`support.run_ranks` starts it as the only rank. It reads FOLDER/batch.pt and FOLDER/model, and writes FOLDER/updates.pt:
for each engine, mean of the loss and optimiser the loss of each mini-batch, the gradients before each step and before
they are clipped, and the weights after the last; and the seconds that ranks wait for each other.
"""

import os
import sys
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import destroy_global_process_group
from verl.workers import engine_workers
from verl.workers.config import HFModelConfig
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss

from cobalt_verl import progress, reporting_worker
from cobalt_verl.losses.loss_agg import micro_batch_loss

ENGINES = {"veRL's own": ("cuda", None), "shared prompts": ("cpu", "cobalt_verl.cpu.shared_prompts")}
LOSSES = {"mini_batch": ppo_loss, "micro_batch": micro_batch_loss}
OPTIMIZERS = {
    "SGD": {"optimizer": "SGD", "lr": 0.1, "weight_decay": 0.0},
    "AdamW": {"optimizer": "AdamW", "lr": 1e-3},  # with veRL's other defaults
}


def nested(rows):
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def rows_of(batch, advantages, count):
    """The first rows of the batch, as the agent loops hand them over."""
    pairs = list(zip(batch["prompts"], batch["responses"], strict=True))[:count]
    mask = nested([torch.ones(len(response), dtype=torch.long) for _, response in pairs])
    whole = [torch.tensor([*prompt, *response]) for prompt, response in pairs]
    spread = [torch.full((len(response),), float(advantages[row])) for row, (_, response) in enumerate(pairs)]
    data = TensorDict(
        {
            "input_ids": nested(whole),
            "position_ids": nested([torch.arange(len(row)) for row in whole]),
            "prompts": nested([prompt for prompt, _ in pairs]),
            "responses": nested([response for _, response in pairs]),
            "loss_mask": mask,
            "response_mask": mask,
            "old_log_probs": nested(batch["old"][:count]),
            "ref_log_prob": nested(batch["reference"][:count]),
            "advantages": nested(spread),
        },
        batch_size=count,
    )
    tensordict_utils.assign_non_tensor(
        data, temperature=batch["temperature"], calculate_entropy=False, use_remove_padding=False, global_batch_size=4,
        mini_batch_size=4, micro_batch_size_per_gpu=2, use_dynamic_bsz=False, epochs=1, seed=0,
        dataloader_kwargs={"shuffle": False},
    )  # fmt: skip
    return data


def training_worker(config, engine, loss, optimizer):
    """VeRL's worker with one of `ENGINES`, `LOSSES` and `OPTIMIZERS`."""
    os.environ["VERL_ENGINE_DEVICE"], config.model.external_lib = ENGINES[engine]
    config.actor.optim.update(OPTIMIZERS[optimizer])
    actor = omega_conf_to_dataclass(config.actor)
    worker = TrainingWorker(
        config=TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(config.model, dataclass_type=HFModelConfig),
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.set_loss_fn(partial(LOSSES[loss], config=actor))
    worker.reset()
    return worker


def updates(config, batch, engine, loss, optimizer):
    """Two steps by SGD or three by AdamW."""
    worker = training_worker(config, engine, loss, optimizer)
    parameters = dict(worker.engine.module.named_parameters())
    advantages = advantages_of(batch)
    results = {"losses": [], "norms": [], "gradients": []}
    step = worker.engine.optimizer_step  # it clips, too

    def recorded_step():
        results["gradients"].append({name: weight.grad.full_tensor().clone() for name, weight in parameters.items()})
        return step()

    worker.engine.optimizer_step = recorded_step
    for count in (8,) if optimizer == "SGD" else (8, 4):
        metrics = tensordict_utils.get(worker.train_mini_batch(rows_of(batch, advantages, count)), "metrics")
        results["losses"] += metrics["loss"]
        results["norms"] += metrics["grad_norm"]
    results["weights"] = {name: weight.detach().full_tensor().clone() for name, weight in parameters.items()}
    return results


def advantages_of(batch):
    longest = max(map(len, batch["responses"]))
    rewards, mask = torch.zeros(8, longest), torch.zeros(8, longest)
    for row, response in enumerate(batch["responses"]):
        mask[row, : len(response)] = 1
        rewards[row, len(response) - 1] = batch["rewards"][row]
    index = np.array([str(row // 4) for row in range(8)], dtype=object)
    return compute_grpo_outcome_advantage(rewards, mask, index)[0][:, 0]


def main(path, folder):
    torch.set_num_threads(1)
    engine_workers.initialize_global_process_group_ray = reporting_worker.initialize_process_group
    transformer_impl.prepare_micro_batches = progress.prepare_micro_batches
    batch = torch.load(folder / "batch.pt")
    results = {"advantages": advantages_of(batch)}
    for choice in product(ENGINES, LOSSES, OPTIMIZERS):
        results[choice] = updates(OmegaConf.load(path).actor_rollout_ref, batch, *choice)
    gloo = torch.distributed.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    results["limit"] = gloo.options._timeout / timedelta(seconds=1)
    torch.save(results, folder / "updates.pt")
    destroy_global_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
