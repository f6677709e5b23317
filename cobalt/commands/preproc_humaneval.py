"""Turn HumanEval, HumanEval+ or MBPP+ into problems: the flags and the work of `preproc/preproc_humaneval.py`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Arguments:
    """Turn HumanEval, HumanEval+ or MBPP+ into problems; each reference program is judged in this process.

    Needs no service.
    """

    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Problems (JSONL), with their manifest next to them as .run.json."""
    input_file: Annotated[Path | None, tyro.conf.arg(aliases=["-i"])] = None
    """Local JSONL (also .jsonl.gz) or Parquet file in the data set's schema; default: the data set by its name."""
    data_set: Literal["humaneval", "humaneval_plus", "mbpp_plus"] = "humaneval"
    """HumanEval, or HumanEval+ or MBPP+ as EvalPlus publishes them, on the Hugging Face Hub or as a release."""
    revision: str = "main"
    """Branch, tag or commit of the data set by its name."""
    prompts: str = "paper"
    """Prompt set of the field `instruction`: paper, pocket, program, or a folder."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_problems
    from cobalt.commands.local_judge import with_local_judge
    from cobalt.datasets.humaneval import HumanEvalSettings, preprocess_humaneval

    summary = with_local_judge(partial(preprocess_humaneval, HumanEvalSettings(**vars(arguments))))
    say_problems(summary, arguments.data_set, arguments.output_file)
    return 0
