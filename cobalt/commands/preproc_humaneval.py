"""Turn HumanEval, HumanEval+ or MBPP+ into problems: the flags and the work of `preproc/preproc_humaneval.py`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console


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
    from cobalt.commands.ending import quoted, say
    from cobalt.datasets.humaneval import HumanEvalSettings, preprocess_humaneval
    from cobalt.judge import JudgeSettings, LocalJudge
    from cobalt.report.summary import summary_table

    settings = HumanEvalSettings(**vars(arguments))

    async def preprocess() -> dict[str, dict[str, int]]:
        async with LocalJudge(JudgeSettings.from_environment()) as judge:
            return await preprocess_humaneval(settings, judge)

    summary = asyncio.run(preprocess())
    Console().print(summary_table(summary, title=f"{arguments.data_set}: {arguments.output_file}"))
    say(str(arguments.output_file), f"cobalt sample -i {quoted(arguments.output_file)} -o single_turn.jsonl")
    return 0
