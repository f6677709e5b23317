"""Turn problems into veRL's parquet files: flags in, one call of `cobalt.datasets.verl_rows`."""

from dataclasses import dataclass

from rich.console import Console

from cobalt.cli import run_script
from cobalt.datasets.verl_flags import VerlRowsFlags


@dataclass(frozen=True, kw_only=True)
class Arguments(VerlRowsFlags):
    """Write one training row for each problem, for single-turn GRPO (the paper's FT models).

    The inputs are problems. Writes train.parquet and validation.parquet, with the columns data_source, prompt, ability,
    reward_model and extra_info. No problem may be in both files.
    """

    max_prompt_length: int = 2_048
    """Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted."""
    prompts: str = "paper"
    """Prompt set that words the problems: paper, pocket, or a folder."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.datasets.verl_rows import VerlRowsSettings, convert_single_turn
    from cobalt.report.summary import summary_table

    flags = vars(arguments).copy()
    prompts = flags.pop("prompts")
    summary = convert_single_turn(VerlRowsSettings(**flags), prompts)
    Console().print(summary_table(summary, title=f"veRL rows: {arguments.local_dir}"))
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
