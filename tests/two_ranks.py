"""One rank of an update by veRL's own engine on a CPU: what it really allocates, as JSON.

    python -m torch.distributed.run --standalone --nproc_per_node 2 tests/two_ranks.py CONFIG.yaml FOLDER

The first rank writes FOLDER/found.json: bytes of its weights, gradients and moments, and the most that the pass forward
and backward allocated. All ranks write a checkpoint to FOLDER/checkpoint.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.distributed import initialize_global_process_group
from verl.workers.config import HFModelConfig
from verl.workers.engine import EngineRegistry


def kept_bytes(tensors):
    """Bytes of the local parts; gradients share a storage."""
    return sum(tensor.to_local().nbytes for tensor in tensors)


def loss_of(model_output, data, dp_group):
    return -model_output["log_probs"].values().mean(), {}


def peak_bytes(trace):
    """The most that was allocated at the same time, by the allocator's own events."""
    events = json.loads(trace.read_text())["traceEvents"]
    memory = [event["args"] for event in events if event["name"] == "[memory]" and event["args"]["Device Type"] == 0]
    return max(event["Total Allocated"] for event in memory)


def main(path, folder):
    config = OmegaConf.load(path).actor_rollout_ref
    initialize_global_process_group()
    model = omega_conf_to_dataclass(config.model, dataclass_type=HFModelConfig)
    actor = omega_conf_to_dataclass(config.actor)
    engine = EngineRegistry.new(
        model_type="language_model",
        backend=actor.engine.strategy,
        model_config=model,
        engine_config=actor.engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    engine.initialize()
    rank = torch.distributed.get_rank()
    rows, length = actor.ppo_micro_batch_size_per_gpu, OmegaConf.load(path).data.max_prompt_length * 2

    def batch():
        # Of unequal lengths: rows of one length need no mask.
        tokens = [torch.randint(0, 90, (length - row % 2,)) for row in range(rows)]
        nested = partial(torch.nested.as_nested_tensor, layout=torch.jagged)
        data = TensorDict(
            {
                "input_ids": nested(tokens),
                "position_ids": nested([torch.arange(len(row)) for row in tokens]),
                "loss_mask": nested([torch.ones(len(row)) for row in tokens]),
            },
            batch_size=rows,
        )
        settings = {"temperature": 1.0, "use_remove_padding": config.model.use_remove_padding, "use_dynamic_bsz": False}
        tensordict_utils.assign_non_tensor(data, micro_batch_size_per_gpu=rows, use_fused_kernels=False, **settings)
        return data

    with engine.train_mode():
        engine.train_batch(batch(), loss_of)
        engine.optimizer_zero_grad()
        with torch.profiler.profile(profile_memory=True) as profiler:
            engine.forward_backward_batch(batch(), loss_of)
        weights = list(engine.module.parameters())
        found = {
            "weights": kept_bytes(weights),
            "gradients": kept_bytes(weight.grad for weight in weights if weight.grad is not None),
            "optimiser": kept_bytes(
                state[name] for state in engine.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
            ),
        }
    engine.save_checkpoint(str(folder / "checkpoint"), global_step=1)
    if rank == 0:
        profiler.export_chrome_trace(str(folder / "trace.json"))
        (folder / "found.json").write_text(json.dumps(found | {"peak": peak_bytes(folder / "trace.json")}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
