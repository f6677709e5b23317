"""The policy that training starts from: a folder, or a name on a model hub."""

import json
from pathlib import Path

from cobalt.stage.errors import UserError

_INDEX = "model.safetensors.index.json"


def policy_path(name: str) -> Path | str:
    """The path of a policy that is a folder, absolute; otherwise its hub name."""
    return Path(name).resolve() if Path(name).exists() else name


def check_weights(policy: Path | str) -> None:
    """Check that a folder has whole files of weights; a hub name is not looked at.

    Of safetensors files the head is read, which says how long the file must be.

    Raises:
        UserError: weights are missing, or a file of them is cut off.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(policy)
    if not folder.is_dir():
        return
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8")) if (folder / _INDEX).exists() else {}
        files = [folder / name for name in sorted(set(index.get("weight_map", {}).values()))]
    except (OSError, ValueError, AttributeError):
        raise UserError(f"{folder / _INDEX} is not a readable index of weights: copy the policy again") from None
    files = files or sorted(folder.glob("*.safetensors"))
    if not files and not list(folder.glob("pytorch_model*.bin")):
        raise UserError(f"{folder} has no weights (model.safetensors): name the folder of a whole policy")
    for file in files:
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file} is not a whole file of weights ({error}): copy the policy again") from None
