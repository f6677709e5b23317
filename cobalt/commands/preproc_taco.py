"""Turn TACO-verified into problems: the flags and the work of `preproc/preproc_taco.py`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Arguments:
    """Filter likaixin/TACO-verified by the paper's rules, judge its solutions, choose public tests, and split it.

    Judges in this process and needs no service. Running the same command again resumes.
    """

    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("data/taco")
    """Folder for train.jsonl and dev.jsonl, and for rows.jsonl with what became of each row of the source."""
    input_file: Annotated[Path | None, tyro.conf.arg(aliases=["-i"])] = None
    """Local JSONL or Parquet file in the data set's schema; default: the data set by its name, streamed."""
    revision: str = "main"
    """Branch, tag or commit of the data set by its name."""
    attempts_file: Path | None = None
    """Single-turn result on the problems of an earlier run; the tests that most of its samples pass become public.
    Default: those with the shortest inputs."""
    function_tests: Literal["call", "paper"] = "call"
    """How function problems are run: called with typed arguments, or by the paper's print(f(*input().split()))."""
    prompts: str = "paper"
    """Prompt set of the field `instruction`: paper, pocket, program, or a folder."""
    max_tests: int = 20
    """Most tests of a problem: a quarter are those with the shortest inputs, the rest those with the longest."""
    authors_order: bool = False
    """Where a problem has more tests, those with the shortest inputs come first, as in the authors' script; otherwise
    tests keep the order of the source."""
    max_solutions: int = 16
    """Most recorded solutions of a problem to judge; one must pass every test."""
    public_tests: int = 4
    """Public tests of a problem; the rest are hidden."""
    dev_size: int = 250
    """Problems of the development split."""
    seed: int = 42
    """Seed of the order in which solutions are tried, and of the split."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import quoted, say_summary
    from cobalt.commands.local_judge import with_local_judge
    from cobalt.datasets.taco import TacoSettings, preprocess_taco
    from cobalt.judge import JudgeSettings

    judge_settings = JudgeSettings.from_environment()
    settings = TacoSettings(**vars(arguments), concurrency=judge_settings.sandboxes + 2)
    say_summary(
        with_local_judge(partial(preprocess_taco, settings), judge_settings),
        f"TACO: {arguments.output_dir}",
        f"{arguments.output_dir}/train.jsonl and dev.jsonl",
        f"cobalt sample -i {quoted(arguments.output_dir / 'train.jsonl')} -o single_turn.jsonl",
    )
    return 0
