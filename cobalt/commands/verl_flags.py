"""The flags that the two scripts for veRL's parquet files share. Parsing is `cobalt.stage.cli`'s."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.episode import TemplateThinking


@dataclass(frozen=True, kw_only=True)
class VerlRowsFlags:
    """Files, policy and limits; the default inputs are where the authors' scripts look."""

    train_file: Annotated[Path, tyro.conf.arg(aliases=["--train_data_file"])] = Path(
        "data/taco_verified_filtered_train.jsonl"
    )
    """What the training rows are made from (JSONL)."""
    validation_file: Annotated[Path, tyro.conf.arg(aliases=["--val_data_file"])] = Path(
        "data/taco_verified_filtered_dev.jsonl"
    )
    """What the validation rows are made from (JSONL)."""
    local_dir: Annotated[Path, tyro.conf.arg(name="output_dir", aliases=["-o", "--local_dir"])]
    """Folder for the two parquet files."""
    model_name: Annotated[str | None, tyro.conf.arg(name="model", aliases=["--model_name"])] = None
    """The policy, a Hugging Face id or a folder; its chat template decides how long a prompt is. Default: the model of
    the Hub that wrote the trajectories, or Qwen/Qwen3-8B (paper) where no manifest says which; a message names it."""
    chat_template_thinking: TemplateThinking = "default"
    """What that template is told about thinking, as in collection: on, off, or default (nothing)."""
    max_prompt_length: int
    """Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted."""
    data_source: str = "taco_cobalt"
    """veRL's name for where the rows are from."""
