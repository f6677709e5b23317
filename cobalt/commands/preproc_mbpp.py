"""Turn MBPP into problems: the flags and the work of `preproc/preproc_mbpp.py`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Arguments:
    """Turn MBPP into problems whose tests are its assertions; runs no program and needs no service."""

    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Problems (JSONL), with their manifest next to them as .run.json."""
    input_file: Annotated[Path | None, tyro.conf.arg(aliases=["-i"])] = None
    """Local mbpp.jsonl of the release, or Parquet with its fields; default: the data set by its name."""
    revision: str = "main"
    """Branch, tag or commit of the data set by its name."""
    split: Literal["test", "validation", "train", "prompt", "all"] = "test"
    """Tasks to keep: test (11 to 510), validation (511 to 600), train (601 to 974), prompt (1 to 10) or all."""
    shots: Literal[0, 3] = 0
    """Solved tasks before the task in the field `instruction`: none, or the tasks 2, 3 and 4 as in the original."""
    challenge_tests: bool = False
    """Add the assertions of challenge_test_list, which few tasks have, to the hidden tests."""
    prompts: str = "paper"
    """Prompt set of the field `instruction` without solved tasks: paper, pocket, program, or a folder."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_problems
    from cobalt.datasets.mbpp import MbppSettings, preprocess_mbpp

    summary = preprocess_mbpp(MbppSettings(**vars(arguments)))
    say_problems(summary, "MBPP", arguments.output_file)
    return 0
