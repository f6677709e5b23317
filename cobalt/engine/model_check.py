"""Whether an engine can be started with a model, as far as files and the Hub's answer show. Nothing is loaded.

vLLM itself would find a wrong name after half a minute. Neither Ray nor transformers is imported.
"""

import json
import os
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError

NO_TEMPLATE = (
    "{model} has no chat template, so conversations cannot be sent to it: give an instruction-tuned model, or a copy"
    " of the model's folder with a chat_template.jinja in it"
)

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

_HUB_SECONDS = 10.0


def model_path(model: str) -> Path | None:
    """The folder that a setting names; None for a name of the Hub."""
    path = Path(model).expanduser()
    return path if model.startswith((".", "/", "~")) or path.exists() else None


def check_model(model: str) -> None:
    """Raise UserError if a folder holds no model or no chat template, or the Hub gives no such model within 10 s."""
    path = model_path(model)
    if path is not None:
        check_folder(path)
    elif (config := cached_config(model)) is None:
        _check_on_hub(model)
    elif lacks_chat_template(config.parent):
        raise UserError(NO_TEMPLATE.format(model=model))


def check_folder(path: Path) -> None:
    """Raise UserError unless a folder holds a model in the format of Hugging Face and a template that fit together."""
    if not path.exists():
        raise UserError(f"there is no folder {path}: give a model's folder, or a hub name")
    others = sorted(file.name for file in path.glob("*.gguf")) if path.is_dir() else []
    advice = f", and {others[0]} cannot be trained or served here: convert it by transformers" if others else ""
    if not (path / "config.json").is_file():
        raise UserError(
            f"{path} is not a model folder, because it has no config.json{advice or ': give one, or a hub name'}"
        )
    if lacks_chat_template(path):
        raise UserError(NO_TEMPLATE.format(model=path))
    if not any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        raise UserError(f"{path} has no weights, which are files {' or '.join(_WEIGHTS)}{advice}")
    check_vocabulary(path)


def check_vocabulary(folder: Path) -> None:
    """Refuse a model with fewer embeddings than tokens (UserError); damaged files are left to those who load them.

    Special tokens that neither end a turn nor stand in the chat template count for nothing: Gemma 3 has one for images.
    """
    settings, tokenizer = _json(folder / "tokenizer_config.json") or {}, _json(folder / "tokenizer.json") or {}
    template, embeddings = folder / "chat_template.jinja", text_config(folder).get("vocab_size")
    try:
        used = [settings.get("chat_template"), settings.get("eos_token")]
        used += [template.read_text(encoding="utf-8")] if template.is_file() else []
        vocabulary, added = (tokenizer.get("model") or {}).get("vocab") or {}, tokenizer.get("added_tokens") or ()
        if isinstance(vocabulary, list):
            vocabulary = {token: number for number, (token, *_) in enumerate(vocabulary)}
        unused = {token["content"] for token in added if token.get("special") and token["content"] not in str(used)}
        numbers = vocabulary | {token["content"]: token["id"] for token in added}
        most = max((int(number) + 1 for token, number in numbers.items() if token not in unused), default=0)
    except (AttributeError, LookupError, TypeError, ValueError):
        return
    if isinstance(embeddings, int) and embeddings < most:
        raise UserError(
            f"the tokenizer of {folder} has {most} tokens, and the model embeddings for only {embeddings}: take the"
            " tokenizer that the model was trained with"
        )


def text_config(folder: Path) -> dict[str, Any]:
    """The sizes of a model's text part by its config.json; {} if that cannot be read, which those say who load it."""
    config = _json(folder / "config.json") or {}
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def lacks_chat_template(folder: Path) -> bool:
    """Whether no file of a model's folder can hold a chat template.

    False if there is no tokenizer_config.json, because tokenizers of other kinds bring their templates along.
    """
    if any(
        (folder / name).exists() for name in ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    ):
        return False
    settings = _json(folder / "tokenizer_config.json")
    return settings is not None and not settings.get("chat_template")


def cached_config(model: str) -> Path | None:
    """The `config.json` of a hub name in this machine's cache; None if the cache does not have the model."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(model, "config.json")
    except HFValidationError:  # such as a provider's name with more than one slash
        return None
    return Path(path) if isinstance(path, str) else None


def _check_on_hub(model: str) -> None:
    from httpx import HTTPError
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HFValidationError

    try:
        get_hf_file_metadata(hf_hub_url(model, "config.json"), token=os.environ.get("HF_TOKEN"), timeout=_HUB_SECONDS)
    except GatedRepoError:
        raise UserError(f"accept the conditions of {model} on its page of the Hub, and set HF_TOKEN") from None
    except (HTTPError, HFValidationError, OSError) as error:  # a network that is not there, and HF_HUB_OFFLINE too
        raise UserError(
            f"there is no folder {model}, and the Hub does not give a model of this name"
            f" ({' '.join(str(error).split())}): give the folder of a model, or download the model once where there is"
            " a network (hf download); a provider's model is the --model_name of cobalt sample and cobalt repair"
        ) from None
