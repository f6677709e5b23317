"""veRL's model merger without its rounding to bfloat16: `python -m cobalt_verl.merge ARGUMENTS OF THE MERGER`.

For policies so small that rounding changes what they say; `config.json` then says float32, too.
"""

import json
import sys
from pathlib import Path

import torch


def main() -> None:
    """Merge, every weight as it was trained."""
    torch.Tensor.bfloat16 = lambda tensor: tensor.float()  # type: ignore[method-assign]
    from verl.model_merger.__main__ import main as merge

    merge()
    path = Path(sys.argv[sys.argv.index("--target_dir") + 1]) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    path.write_text(json.dumps(config | {"dtype": "float32"}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
