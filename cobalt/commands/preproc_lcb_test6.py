"""Turn LiveCodeBench into problems: the flags and the work of `preproc/preproc_lcb_test6.py`."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Arguments:
    """Turn LiveCodeBench's test6.jsonl into problems; functional problems are judged by calling their function."""

    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("data/lcb_v6.jsonl")
    """Problems (JSONL), with their manifest next to them as .run.json."""
    input_file: Annotated[Path | None, tyro.conf.arg(aliases=["-i"])] = None
    """Local test6.jsonl (or another release in its schema). Default: test6.jsonl in the current folder if it is there,
    otherwise downloaded by name."""
    start_date: date | None = None
    """First day of the contests to keep, such as 2025-01-31."""
    end_date: date | None = None
    """Last day of the contests to keep."""
    paper_mode: bool = False
    """As in the paper: every problem is a program on standard input, its statement cut before the first example."""
    prompts: str = "paper"
    """Prompt set of the field `instruction`: paper, pocket, program, or a folder."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_problems
    from cobalt.datasets.livecodebench import LiveCodeBenchSettings, preprocess_livecodebench

    summary = preprocess_livecodebench(LiveCodeBenchSettings(**vars(arguments)))
    say_problems(summary, "LiveCodeBench", arguments.output_file)
    return 0
