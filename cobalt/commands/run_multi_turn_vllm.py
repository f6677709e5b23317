"""Multi turn with vLLM: the flags and the work of `run_multi_turn_vllm.py`."""

import asyncio
from dataclasses import dataclass

from cobalt.commands.ending import say_repaired
from cobalt.judge import ServeJudge
from cobalt.rollout.flags import MultiTurnFlags, VllmFlags
from cobalt.rollout.multi_turn import run_multi_turn


@dataclass(frozen=True)
class Arguments(MultiTurnFlags, VllmFlags):
    """Let the model repair its programs with feedback from the public tests, turn after turn.

    The input is a single-turn result, whose responses are then the first turn, or a problem file. Needs the Ray
    Serve apps `evaluator` and `vllm_actor`. Running the same command again resumes.
    """


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    settings = arguments.multi_turn_settings()
    failed = asyncio.run(run_multi_turn(settings, arguments.engine(), ServeJudge()))
    if failed:
        return 1
    say_repaired(settings.output_file)
    return 0
