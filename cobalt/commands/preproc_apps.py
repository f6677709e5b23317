"""Turn APPS or APPS+ into problems: the flags and the work of `preproc/preproc_apps.py`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Arguments:
    """Turn APPS or APPS+ into problems; recorded solutions are judged in this process where tests have two meanings.

    Needs no service. Running the same command again resumes.
    """

    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Problems (JSONL), with their manifest next to them as .run.json."""
    input_file: Annotated[Path | None, tyro.conf.arg(aliases=["-i"])] = None
    """Local file: JSONL or Parquet of APPS, or the JSON array of APPS+; default: the split of APPS by its name."""
    data_set: Literal["apps", "apps_plus"] = "apps"
    """APPS or APPS+."""
    split: Literal["train", "test"] = "test"
    """Split of APPS by its name."""
    revision: str = "main"
    """Branch, tag or commit of the data set by its name."""
    difficulty: tuple[Literal["introductory", "interview", "competition"], ...] = (
        "introductory",
        "interview",
        "competition",
    )
    """Difficulties to keep."""
    max_solutions: int = 16
    """Most recorded solutions of a problem to judge, where its tests can be read in two ways."""
    prompts: str = "paper"
    """Prompt set of the field `instruction`: paper, pocket, program, or a folder."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_problems
    from cobalt.commands.local_judge import with_local_judge
    from cobalt.datasets.apps import AppsSettings, preprocess_apps

    summary = with_local_judge(partial(preprocess_apps, AppsSettings(**vars(arguments))))
    say_problems(summary, arguments.data_set, arguments.output_file)
    return 0
