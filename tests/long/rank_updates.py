"""An update by ranks of veRL, with and without micro-batches in order of their tokens, for tests/long/test_ranks.py.

    python -m torch.distributed.run --standalone --nproc_per_node 4 tests/long/rank_updates.py CONFIG.yaml FOLDER

It reads FOLDER/batch.pt and FOLDER/model, and writes FOLDER/ranks.pt: for each mean of the loss and each way the loss
and the gradients before they are clipped, and the tokens of each rank's micro-batches in the order of the work.
"""

import sys
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
import verl_updates
from omegaconf import OmegaConf
from verl.utils.distributed import destroy_global_process_group
from verl.workers import engine_workers
from verl.workers.engine import utils
from verl.workers.engine.fsdp import transformer_impl

from cobalt_verl import progress, reporting_worker

WAYS = {"veRL's own": utils.prepare_micro_batches, "by tokens": progress.prepare_micro_batches}


def main(path, folder):
    torch.set_num_threads(1)
    engine_workers.initialize_global_process_group_ray = reporting_worker.initialize_process_group
    whole = torch.load(folder / "batch.pt")
    results, rows_of = {}, verl_updates.rows_of
    for mean in verl_updates.LOSSES:
        for way, prepare in WAYS.items():
            orders = []

            def recorded(*arguments, prepare=prepare, orders=orders, **keywords):
                parts, indices = prepare(*arguments, **keywords)
                orders.append([part["input_ids"].values().numel() for part in parts])
                return parts, indices

            def of_this_rank(batch, advantages, count):
                rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
                share = slice(rank * count // ranks, (rank + 1) * count // ranks)
                names = ("prompts", "responses", "old", "reference")
                rows = rows_of(batch | {name: batch[name][share] for name in names}, advantages[share], count // ranks)
                utils.tu.assign_non_tensor(
                    rows, global_batch_size=count, mini_batch_size=count, micro_batch_size_per_gpu=1
                )
                return rows

            with (
                mock.patch.object(transformer_impl, "prepare_micro_batches", recorded),
                mock.patch.object(verl_updates, "rows_of", of_this_rank),
            ):
                actor = OmegaConf.load(path).actor_rollout_ref
                made = verl_updates.updates(actor, whole, "veRL's own", mean, "SGD")
            every = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(every, orders)
            results[mean, way] = {name: made[name] for name in ("losses", "gradients")} | {"orders": every}
    results["limit"] = torch.distributed.distributed_c10d._get_default_group()._get_backend(
        torch.device("cpu")
    ).options._timeout / timedelta(seconds=1)
    if torch.distributed.get_rank() == 0:
        torch.save(results, folder / "ranks.pt")
    destroy_global_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
