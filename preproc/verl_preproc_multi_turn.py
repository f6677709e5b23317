"""Turn contextual prompts into veRL's parquet files: flags in, one call of `cobalt.datasets.verl_rows`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from cobalt.cli import run_script
from cobalt.conversation import TemplateThinking

# The defaults of the authors' scripts.
TRAIN_FILE = Path("data/taco_verified_filtered_train.jsonl")
VALIDATION_FILE = Path("data/taco_verified_filtered_dev.jsonl")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Write one training row for each contextual prompt, for Cobalt's single-step GRPO.

    Writes train.parquet and validation.parquet, with the columns data_source, prompt, ability, reward_model and
    extra_info. No problem may be in both files.
    """

    train_file: Annotated[Path, tyro.conf.arg(aliases=["--train_data_file"])] = TRAIN_FILE
    """Result of process_multi_turn_taco.py (JSONL)."""
    validation_file: Annotated[Path, tyro.conf.arg(aliases=["--val_data_file"])] = VALIDATION_FILE
    """Result of process_multi_turn_taco.py --is_test (JSONL)."""
    local_dir: Path
    """Folder for the two parquet files."""
    model_name: str = "Qwen/Qwen3-8B"
    """The policy, by whose chat template prompts are measured: a Hugging Face id or a folder."""
    chat_template_thinking: TemplateThinking = "default"
    """That template's switch enable_thinking, as in collection: on, off, or default (not passed)."""
    max_prompt_length: int = 10_240
    """Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted."""
    data_source: str = "taco_cobalt"
    """veRL's name for where the rows are from."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.datasets.verl_rows import VerlRowsSettings, convert_multi_turn
    from cobalt.report.summary import summary_table

    summary = convert_multi_turn(VerlRowsSettings(**vars(arguments)))
    Console().print(summary_table(summary, title=f"veRL rows: {arguments.local_dir}"))
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
