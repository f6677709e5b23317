"""Public and hidden tests for one's own problems: the flags and the work of `cobalt split`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Arguments:
    """Give problems public tests, whose failures the model is shown, and hidden tests, which measure its programs.

    The first tests of a problem become public, the rest hidden. A problem that has public or hidden tests already is
    left as it is. Runs no program and needs no service.
    """

    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Problems: a file (JSONL, JSON array or Parquet, also compressed by gzip)."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The same problems (JSONL), with their manifest next to them as .run.json."""
    public_tests: int = 4
    """Number of tests that become public; at least one test stays hidden."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_problems
    from cobalt.datasets.split_tests import split_with_manifest

    summary = split_with_manifest(arguments.input_file, arguments.output_file, arguments.public_tests)
    say_problems(summary, "Tests", arguments.output_file)
    return 0
