"""Single turn: draw n programs for each problem and judge each on all of its tests."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.conversation import first_messages, load_prompts
from cobalt.engine import Call, Completion, Engine, GenerationSettings, derive_seed
from cobalt.episode import judge_response
from cobalt.files import check_files
from cobalt.judge import Judge, RememberingJudge
from cobalt.problem import Problem, load_problems
from cobalt.records import RecordFile
from cobalt.rollout.runner import check_concurrency, run_all
from cobalt.trajectory import Turn
from cobalt.trajectory_codec import encode_single_turn


@dataclass(frozen=True, slots=True)
class SingleTurnSettings:
    """Settings of one single-turn run.

    Attributes:
        input_file: Problems.
        output_file: Result; resumed when it exists.
        generation: Sampling; its `seed` is the run's seed.
        prompts: Prompt set, by name or folder.
        concurrency: Problems worked on at a time.
    """

    input_file: Path
    output_file: Path
    generation: GenerationSettings
    prompts: str = "paper"
    concurrency: int = 64

    def __post_init__(self) -> None:
        check_concurrency(self.concurrency)

    def check(self) -> None:
        """Check the files before anything slow begins.

        Raises:
            UserError: an input cannot be read, or the result cannot be written.
        """
        load_prompts(self.prompts)
        check_files([self.input_file], [self.output_file])


async def run_single_turn(settings: SingleTurnSettings, engine: Engine, judge: Judge) -> int:
    """Write the records of a run.

    A record is the problem's fields, `instruction` as it was sent, and the fields of `encode_single_turn`.

    Returns:
        How many problems failed.

    Raises:
        UserError: bad input, or a result that other settings made.
        ServiceDown: engine or judge is not running.
    """
    settings.check()
    prompts = load_prompts(settings.prompts)
    problems = load_problems(settings.input_file)

    async def work(problem: Problem) -> dict[str, Any]:
        messages = first_messages(problem, prompts)
        call = Call(problem.id, turn=0)
        turns = list(map(turn_of, await engine.generate(messages, seeded(settings.generation, call), call)))
        remembering = RememberingJudge(judge)  # the samples of a problem repeat programs
        results = await asyncio.gather(*(judge_response(remembering, turn.response, problem.tests) for turn in turns))
        return dict(problem.record) | {
            "instruction": messages[-1]["content"],
            **encode_single_turn(turns, results),
        }

    with RecordFile(settings.output_file) as output:
        arguments = {
            "stage": "single_turn",
            "generation": settings.generation.model_dump(),
            "prompts": prompts.digests,
            "engine": dict(await engine.describe()),
            "judge": dict(await judge.describe()),
        }
        return await run_all(
            problems,
            lambda problem: problem.id,
            work,
            output,
            arguments=arguments,
            inputs=[settings.input_file],
            concurrency=settings.concurrency,
            description="single turn",
        )


def seeded(generation: GenerationSettings, call: Call) -> GenerationSettings:
    """The run's settings with the seed of one call; unchanged if the run has no seed."""
    if generation.seed is None:
        return generation
    return generation.model_copy(update={"seed": derive_seed(generation.seed, call)})


def turn_of(completion: Completion) -> Turn:
    """A completion as a turn that is not judged yet."""
    return Turn(
        response=completion.text,
        finish_reason=completion.finish_reason,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        cost=completion.cost,
        error=completion.message,
    )
