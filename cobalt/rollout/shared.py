"""What single-turn and multi-turn rollouts share: settings, seeds of calls, and the run over all problems of a file."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.conversation import load_prompts
from cobalt.engine import Call, Completion, Engine, GenerationSettings, derive_seed
from cobalt.files import check_files
from cobalt.judge import Judge
from cobalt.problem import Problem
from cobalt.records import RecordFile
from cobalt.rollout.runner import check_concurrency, run_all
from cobalt.trajectory import Turn


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of a rollout.

    Attributes:
        input_file: Problems, or what `run_multi_turn` takes.
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
        """Look at the files before anything slow begins.

        Raises:
            UserError: an input cannot be read, or the result cannot be written.
        """
        load_prompts(self.prompts)
        check_files([self.input_file], [self.output_file])


async def run_rollout(
    settings: RolloutSettings,
    problems: Sequence[Problem],
    work: Callable[[Problem], Awaitable[Mapping[str, Any]]],
    engine: Engine,
    judge: Judge,
    *,
    stage: str,
    decided: Mapping[str, Any],
) -> int:
    """Do `work` for each problem that the result does not hold yet; see `cobalt.rollout.runner.run_all`.

    Args:
        settings: Files, sampling and prompts.
        problems: The problems of the input.
        work: Makes the record of a problem.
        engine: Generates.
        judge: Judges.
        stage: Name of the stage in the manifest.
        decided: What decides the records besides sampling, prompts, engine and judge.
    """
    with RecordFile(settings.output_file) as output:
        arguments = {
            "stage": stage,
            "generation": settings.generation.model_dump(),
            **decided,
            "prompts": load_prompts(settings.prompts).digests,
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
            description=stage.replace("_", " "),
        )


def seeded(generation: GenerationSettings, call: Call) -> GenerationSettings:
    """The run's settings with the seed of one call; a run without a seed stays without."""
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
