"""Classify hacking events: the flags and the work of `run_llm_judge.py`."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from cobalt.commands.ending import quoted, say
from cobalt.engine.api_flags import ApiFlags
from cobalt.hacking.classifier import ANSWER_SCHEMA, ClassifierSettings, classify_events
from cobalt.report.summary import summary_table
from cobalt.rollout.shared import sampling


@dataclass(frozen=True, kw_only=True)
class Arguments(ApiFlags):
    """Ask a model which of four kinds of reward hacking each event is.

    Running it again replaces the output; answers that were paid for are kept in OUTPUT.calls.jsonl and found again by
    the event's content, whatever its position in the input.
    """

    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Hacking events (JSONL), from extract_turn_level_errors.py."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The events with votes and category (JSONL)."""
    model_name: Annotated[str, tyro.conf.arg(name="model", aliases=["--model_name"])] = "gpt-5-2025-08-07"
    """The classifier, as LiteLLM names it; with api_base, as the server names it."""
    reasoning_effort: Annotated[str, tyro.conf.arg(aliases=["-r"])] = "low"
    """How long a reasoning model thinks; "default" sends nothing."""
    num_completions: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1
    """Votes on each event; the majority decides."""
    human_labels: Path | None = None
    """Compare with people: JSONL with the "key" of an event and its "label", 1 to 4 or a name."""
    paper_verdicts: bool = False
    """Read answers by the authors' rule: the first "Final Verdict: (k) Name" to the letter, and the first vote."""
    max_tokens: int = 32000
    """Maximum number of tokens in one answer, hidden reasoning included."""
    concurrency: int = 16
    """Events classified at a time."""


async def _run(arguments: Arguments) -> int:
    settings = ClassifierSettings(
        arguments.input_file,
        arguments.output_file,
        sampling(temperature=1, top_p=1, max_tokens=arguments.max_tokens, n=arguments.num_completions, seed=0),
        human_labels=arguments.human_labels,
        concurrency=arguments.concurrency,
        paper_verdicts=arguments.paper_verdicts,
    )
    settings.check()
    schema = None if arguments.paper_verdicts else ANSWER_SCHEMA
    async with arguments.open_engine(settings.output_file, schema) as engine:
        summary, failed = await classify_events(settings, engine, structured=engine.structured)
    Console().print(summary_table(summary, title=f"Categories of hacking events: {settings.output_file}"))
    if failed:
        return 1
    say(str(settings.output_file), f"cobalt report RUN --hacking NAME={quoted(settings.output_file)} -o report")
    return 0


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    return asyncio.run(_run(arguments))
