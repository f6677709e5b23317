"""Multi turn with vLLM: flags in, one call of `cobalt.rollout.multi_turn`."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from cobalt.cli import run_script
from cobalt.judge import ServeJudge
from cobalt.rollout.flags import VllmFlags
from cobalt.rollout.multi_turn import MultiTurnRun, run_multi_turn


@dataclass(frozen=True)
class Arguments(VllmFlags):
    """Let the model repair its programs by the feedback of the public tests, turn after turn.

    The input is a single-turn result, whose responses are then the first turn, or a problem file. Needs the Ray
    Serve apps `evaluator` and `vllm_actor`. Running the same command again resumes.
    """

    turns: int = 8
    """Turns after the first one; the paper takes 2 to collect trajectories and 8 to evaluate."""
    public_tests: Literal["benign", "perturbed"] = "benign"
    """The tests that feedback comes from; perturbed: those that preproc/run_perturbation.py made impossible."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    run = MultiTurnRun(
        arguments.input_file,
        arguments.output_file,
        arguments.generation(),
        turns=arguments.turns,
        public_tests=arguments.public_tests,
        prompts=arguments.prompts,
        concurrency=arguments.concurrency,
    )
    failed = asyncio.run(run_multi_turn(run, arguments.engine(), ServeJudge()))
    return 1 if failed else 0


if __name__ == "__main__":
    run_script(Arguments, main)
