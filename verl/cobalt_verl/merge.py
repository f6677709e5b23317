"""veRL's model merger in the precision of the checkpoint: `python -m cobalt_verl.merge CHECKPOINT FOLDER`.

veRL's own merger rounds to bfloat16, which changes the responses of a policy of a few million parameters, and leaves
low-rank adapters apart from the weights. Checkpoints of FSDP alone can be merged; nothing in them is run.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards

# Importing DTensor lets torch load it, and its mesh and placements, beside plain tensors; all else could run code.
_load = partial(torch.load, map_location="cpu", weights_only=True)


class ExactMerger(FSDPModelMerger):  # type: ignore[misc]  # veRL is not typed
    """See the module."""

    def _load_rank_zero_state_dict(self, world_size: int) -> dict[str, Any]:
        weights: dict[str, Any] = _load(Path(self.config.local_dir) / f"model_world_size_{world_size}_rank_0.pt")
        return weights

    def _load_and_merge_state_dicts(
        self, world_size: int, total_shards: int, mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]
    ) -> dict[str, torch.Tensor]:
        """The weights of all ranks as one; the arguments are those of veRL's method."""
        if len(mesh_shape) != 1:  # veRL's own merger stops before, as long as it knows FSDP alone
            raise NotImplementedError(f"a mesh of {len(mesh_shape)} dimensions: only FSDP without other parallelism")
        folder = Path(self.config.local_dir)
        ranks = [_load(folder / f"model_world_size_{world_size}_rank_{rank}.pt") for rank in range(total_shards)]
        merged = {}
        for name, first in ranks[0].items():
            shards = [rank[name] for rank in ranks]
            if isinstance(first, DTensor):
                merged[name] = self._merge_by_placement([shard.to_local() for shard in shards], first.placements[-1])
            else:
                merged[name] = merge_non_dtensor_shards(name, shards)
        return merged

    def save_lora_adapter(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Add low-rank adapters to their weights; veRL would write them into a folder of their own."""
        meta = self._load_lora_train_meta()
        merge_adapters(state_dict, None if meta is None else meta["lora_alpha"] / meta["r"])

    def save_hf_model_and_tokenizer(self, state_dict: dict[str, torch.Tensor]) -> None:
        """As veRL, but `config.json` names the precision that the weights have."""
        precision = str(next(iter(state_dict.values())).dtype).removeprefix("torch.")
        super().save_hf_model_and_tokenizer(state_dict)
        path = Path(self.config.target_dir) / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config.pop("torch_dtype", None)
        path.write_text(json.dumps(config | {"dtype": precision}, indent=2) + "\n", encoding="utf-8")


def merge_adapters(weights: dict[str, torch.Tensor], scale: float | None) -> None:
    """W + scale x B A in place of each weight W with an adapter, and the names of a model without adapters.

    Args:
        weights: By the names that PEFT gives them; changed in place.
        scale: The adapters' alpha over their rank; None: not known.

    Raises:
        ValueError: there is an adapter, and the scale is not known.
    """
    low_rank = ".lora_A.default.weight"
    adapted = [name.removesuffix(low_rank) for name in weights if name.endswith(low_rank)]
    if not adapted:
        return
    if scale is None:
        raise ValueError("the checkpoint has adapters, but no lora_train_meta.json with their rank and alpha")
    for name in adapted:
        low = weights.pop(f"{name}{low_rank}").float()
        high = weights.pop(f"{name}.lora_B.default.weight").float()
        weight = weights[f"{name}.base_layer.weight"]
        weights[f"{name}.base_layer.weight"] = (weight.float() + scale * (high @ low)).to(weight.dtype)
    for name in list(weights):
        weights[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = weights.pop(name)


def main(checkpoint: str, folder: str) -> None:
    """Merge a checkpoint into a Hugging Face folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=checkpoint,
        target_dir=folder,
        hf_model_config_path=str(Path(checkpoint) / "huggingface"),
        use_cpu_initialization=True,
    )
    ExactMerger(config).merge_and_save()


if __name__ == "__main__":
    main(*sys.argv[1:])
