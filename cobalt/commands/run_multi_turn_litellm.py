"""Multi turn with a proprietary model: the flags and the work of `run_multi_turn_litellm.py`."""

import asyncio
from dataclasses import dataclass

from cobalt.commands.ending import say_repaired
from cobalt.judge import ServeJudge
from cobalt.rollout.flags import LiteLLMFlags, MultiTurnFlags
from cobalt.rollout.multi_turn import run_multi_turn


@dataclass(frozen=True)
class Arguments(LiteLLMFlags, MultiTurnFlags):  # in this order, so that the defaults are those for APIs
    """Let a model behind an API repair its programs with feedback from the public tests, turn after turn.

    The input is a single-turn result, whose responses are then the first turn, or a problem file. Needs the Ray
    Serve app `evaluator` and a key. Running the same command again resumes; answers that were paid for are kept in
    OUTPUT.calls.jsonl.
    """


async def _run(arguments: Arguments) -> int:
    settings = arguments.multi_turn_settings()
    settings.check()
    async with arguments.open_engine(settings.output_file) as engine:
        failed = await run_multi_turn(settings, engine, ServeJudge())
    if failed:
        return 1
    say_repaired(settings.output_file)
    return 0


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    return asyncio.run(_run(arguments))
