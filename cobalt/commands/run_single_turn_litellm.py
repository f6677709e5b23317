"""Single turn with a proprietary model: the flags and the work of `run_single_turn_litellm.py`."""

import asyncio
from dataclasses import dataclass

from cobalt.commands.ending import say_sampled
from cobalt.judge import ServeJudge
from cobalt.rollout.flags import LiteLLMFlags
from cobalt.rollout.single_turn import run_single_turn


@dataclass(frozen=True)
class Arguments(LiteLLMFlags):
    """Draw n programs for each problem from a model behind an API and judge each on all of its tests.

    Needs the Ray Serve app `evaluator` and a key. Running the same command again resumes; answers that were paid for
    are kept in OUTPUT.calls.jsonl.
    """


async def _run(arguments: Arguments) -> int:
    settings = arguments.single_turn_settings()
    settings.check()
    async with arguments.open_engine(settings.output_file) as engine:
        failed = await run_single_turn(settings, engine, ServeJudge())
    if failed:
        return 1
    say_sampled(settings.output_file, arguments)
    return 0


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    return asyncio.run(_run(arguments))
