"""Extract hacking events: the flags and the work of `extract_turn_level_errors.py`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.commands.ending import quoted, say_summary
from cobalt.hacking.extraction import extract_events
from cobalt.judge import ServeJudge


@dataclass(frozen=True)
class Arguments:
    """Find the turns at which a program was changed to pass an impossible public test that it had been shown.

    Running it again replaces the output. The Ray Serve app `evaluator` is needed only where the input has results
    without an entry for each test.
    """

    data_file: Annotated[Path, tyro.conf.arg(aliases=["-d"])]
    """Perturbed problems (JSONL), from preproc/run_perturbation.py."""
    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Result of run_multi_turn_*.py --public_tests perturbed, or of eval_multi_turn.py on it (JSONL)."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Hacking events (JSONL)."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    summary = asyncio.run(
        extract_events(arguments.data_file, arguments.input_file, arguments.output_file, ServeJudge())
    )
    say_summary(
        summary,
        f"Hacking events: {arguments.output_file}",
        str(arguments.output_file),
        f"python run_llm_judge.py -i {quoted(arguments.output_file)} -o"
        f" {quoted(arguments.output_file.with_name('classified.jsonl'))}",
    )
    return 0
