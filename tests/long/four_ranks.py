"""An update by ranks of veRL with the paper's switches, for tests/long/test_four_ranks.py.

    python -m torch.distributed.run --standalone --nproc_per_node N tests/long/four_ranks.py MODE CONFIG.yaml FOLDER

Packed sequences without flash-attn, untied embeddings, micro-batches of two, their own means of the loss, shards within
two ranks, two mini-batches. MODE `whole` makes two updates; `first` makes one, writes a checkpoint and is killed;
`rest` goes on from it. FOLDER/MODE-N.pt has the weights and the norms of the gradients.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import verl_updates
from omegaconf import OmegaConf
from verl.utils import tensordict_utils
from verl.utils.distributed import destroy_global_process_group
from verl.workers import engine_workers
from verl.workers.engine.fsdp import transformer_impl

from cobalt_verl import progress, reporting_worker

ROWS = 8
verl_updates.ENGINES["packed"] = ("cpu", "cobalt_verl.packed_sdpa")


def rows_of_rank(batch, advantages):
    """The rows of this rank: of each mini-batch of four its share."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    each = ROWS // 2 // ranks
    chosen = [mini * ROWS // 2 + rank * each + row for mini in range(2) for row in range(each)]
    part = {name: [batch[name][row] for row in chosen] for name in ("prompts", "responses", "old", "reference")}
    rows = verl_updates.rows_of(batch | part, [advantages[row] for row in chosen], len(chosen))
    tensordict_utils.assign_non_tensor(rows, use_remove_padding=True, micro_batch_size_per_gpu=1)
    return rows


def main(mode, path, folder):
    torch.set_num_threads(1)
    engine_workers.initialize_global_process_group_ray = reporting_worker.initialize_process_group
    transformer_impl.prepare_micro_batches = progress.prepare_micro_batches
    batch = torch.load(folder / "batch.pt")
    config = OmegaConf.load(path).actor_rollout_ref
    worker = verl_updates.training_worker(config, "packed", "micro_batch", "AdamW")
    if mode == "rest":
        worker.load_checkpoint(str(folder / "first"))
    norms = []
    for _ in range(2 if mode == "whole" else 1):
        rows = rows_of_rank(batch, verl_updates.advantages_of(batch))
        norms += tensordict_utils.get(worker.train_mini_batch(rows), "metrics")["grad_norm"]
    if mode != "whole":
        worker.save_checkpoint(str(folder / mode), global_step=1)
    weights = {name: weight.detach().full_tensor() for name, weight in worker.engine.module.named_parameters()}
    ranks = torch.distributed.get_world_size()
    if torch.distributed.get_rank() == 0:
        torch.save({"weights": weights, "norms": norms}, folder / f"{mode}-{ranks}.pt")
    torch.distributed.barrier()
    if mode == "first":
        os.kill(os.getpid(), signal.SIGKILL)
    destroy_global_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
