"""Single turn with vLLM: the flags and the work of `run_single_turn_vllm.py`."""

import asyncio
from dataclasses import dataclass

from cobalt.commands.ending import say_sampled
from cobalt.judge import ServeJudge
from cobalt.rollout.flags import VllmFlags
from cobalt.rollout.single_turn import run_single_turn


@dataclass(frozen=True)
class Arguments(VllmFlags):
    """Draw n programs for each problem from the vLLM service and judge each on all of its tests.

    Needs the Ray Serve apps `evaluator` and `vllm_actor`. Running the same command again resumes.
    """


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    settings = arguments.single_turn_settings()
    failed = asyncio.run(run_single_turn(settings, arguments.engine(), ServeJudge()))
    if failed:
        return 1
    say_sampled(settings.output_file, arguments)
    return 0
