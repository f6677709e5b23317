"""veRL's model merger in the precision of the checkpoint: `python -m cobalt_verl.merge CHECKPOINT FOLDER`.

veRL's own merger rounds to bfloat16, which changes the responses of a policy of a few million parameters. Only
checkpoints of FSDP can be merged.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards


class ExactMerger(FSDPModelMerger):  # type: ignore[misc]  # veRL is not typed
    """See the module."""

    def _load_and_merge_state_dicts(
        self, world_size: int, total_shards: int, mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]
    ) -> dict[str, torch.Tensor]:
        """The weights of all ranks as one; the arguments are those of veRL's method."""
        if len(mesh_shape) != 1:
            raise NotImplementedError(f"a mesh of {len(mesh_shape)} dimensions: only FSDP without other parallelism")
        folder = Path(self.config.local_dir)
        ranks: list[dict[str, Any]] = [
            torch.load(folder / f"model_world_size_{world_size}_rank_{rank}.pt", map_location="cpu", weights_only=False)
            for rank in range(total_shards)
        ]
        merged = {}
        for name, first in ranks[0].items():
            shards = [rank[name] for rank in ranks]
            if isinstance(first, DTensor):
                merged[name] = self._merge_by_placement([shard.to_local() for shard in shards], first.placements[-1])
            else:
                merged[name] = merge_non_dtensor_shards(name, shards)
        return merged

    def save_hf_model_and_tokenizer(self, state_dict: dict[str, torch.Tensor]) -> None:
        """As veRL, but `config.json` names the precision that the weights have."""
        precision = str(next(iter(state_dict.values())).dtype).removeprefix("torch.")
        super().save_hf_model_and_tokenizer(state_dict)
        path = Path(self.config.target_dir) / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config.pop("torch_dtype", None)
        path.write_text(json.dumps(config | {"dtype": precision}, indent=2) + "\n", encoding="utf-8")


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
