"""What single-turn and multi-turn rollouts share: settings, seeds of calls, and the run over all problems of a file."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from cobalt.engine import Call, Completion, Engine, GenerationSettings, derive_seed
from cobalt.engine.replay import ReplayEngine
from cobalt.episode import check_wording, load_prompts
from cobalt.episode.trajectory import Turn
from cobalt.judge import Judge
from cobalt.problems.problem import Problem, choose_problems
from cobalt.rollout.progress import CountingEngine
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_files
from cobalt.stage.manifest import check_made_with, recorded_arguments
from cobalt.stage.progress import ticking
from cobalt.stage.records import RecordFile
from cobalt.stage.run import check_concurrency, each

logger = logging.getLogger(__name__)

Samples = Literal["auto", "seeded", "unseeded"]
"""Whether each sample has a seed of its own; "auto": `decide_samples` says."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of a rollout.

    Attributes:
        input_file: Problems, or what `run_multi_turn` takes.
        output_file: Result; resumed when it exists.
        generation: Sampling; its `seed` is the run's seed.
        prompts: Prompt set, by name or folder. None: `paper`, and problems may have an `instruction` in other words.
        concurrency: Problems worked on at a time.
        samples: Whether each sample has a seed of its own, which follows from the run's seed.
        limit: Work on the first so many problems alone. None: on all.
        ids: Work on the problems with these ids alone, as text. Empty: on all.
    """

    input_file: Path
    output_file: Path
    generation: GenerationSettings
    prompts: str | None = None
    concurrency: int = 64
    samples: Samples = "auto"
    limit: int | None = None
    ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_concurrency(self.concurrency)

    def check(self) -> None:
        """Look at the files before anything slow begins.

        Raises:
            UserError: an input cannot be read, or the result cannot be written or was made with other settings.
        """
        load_prompts(self.prompts)
        check_files([self.input_file], [self.output_file])
        self.check_earlier()

    def decisive(self) -> dict[str, Any]:
        """What decides the records, as the manifest has it; without the services."""
        return {"generation": self.generation.model_dump(), "prompts": load_prompts(self.prompts).digests}

    def check_earlier(self, services: Mapping[str, Any] | None = None) -> None:
        """Compare the settings with those of an existing result, before services are asked or started.

        Args:
            services: What is known of engine and judge, as the manifest has it.

        Raises:
            UserError: the result was made with other settings; they are named.
        """
        given = self.decisive() | dict(services or {})
        recorded = (recorded_arguments(self.output_file) or {}).get("generation", {})
        if self.samples == "unseeded" or (self.samples == "auto" and recorded.get("seed") is None):
            given["generation"] |= {"seed": None}  # see `decide_samples`
        check_made_with(self.output_file, given)

    @property
    def choice(self) -> dict[str, Any]:
        """How the problems are chosen, for the manifest; {} for all problems."""
        named = {"limit": self.limit, "ids": list(self.ids)}
        return {"problems": {name: value for name, value in named.items() if value}} if any(named.values()) else {}

    def chosen(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems that the run works on, of all in its input.

        Raises:
            UserError: there is no problem with a chosen id.
        """
        return choose_problems(problems, self.input_file, self.limit, self.ids)

    def check_wording(self, problems: Sequence[Problem]) -> None:
        """Raise if a prompt set is named that does not word the first messages which the problems have.

        Raises:
            UserError: it does not; the message names file and problem.
        """
        if self.prompts is None:
            return
        prompts = load_prompts(self.prompts)
        for problem in problems:
            try:
                check_wording(problem, prompts)
            except UserError as error:
                raise UserError(f"{self.input_file}: {error}") from None


Settings = TypeVar("Settings", bound=RolloutSettings)


async def decide_samples(settings: Settings, engine: Engine) -> Settings:
    """The settings of a run, without a seed if its samples are unseeded; the manifest records the seed.

    "auto" goes on as an existing result began. A new result is seeded unless the engine runs on GPUs, where sums depend
    on the batch, so that the same seeds may give other samples.

    Raises:
        ServiceDown: the engine is not running.
        UserError: the manifest of the result cannot be read.
    """
    samples = settings.samples
    if samples == "auto":
        there = settings.output_file.exists() and settings.output_file.stat().st_size > 0
        recorded = (recorded_arguments(settings.output_file) if there else None) or {}
        if "generation" in recorded:
            samples = "unseeded" if recorded["generation"].get("seed") is None else "seeded"
        else:
            samples = "unseeded" if (await engine.describe()).get("device") == "gpu" else "seeded"
    if samples == "seeded":
        return settings
    return replace(settings, generation=settings.generation.model_copy(update={"seed": None}))


def check_replay(engine: Engine, problems: Sequence[Problem], turns: int) -> None:
    """Raise if a replay holds none of the problems or too few turns, and say if it holds some of the problems.

    Does nothing for other engines.

    Args:
        engine: The engine of the run.
        problems: The problems of the run.
        turns: How many turns the run has, the first one included.

    Raises:
        UserError: see above.
    """
    if not isinstance(engine, ReplayEngine):
        return
    held = sum(problem.id in engine.problems for problem in problems)
    if not held:
        raise UserError(
            f"{engine.path} holds responses for none of the {len(problems)} problems, such as {problems[0].id!r}: give"
            " the file that was recorded with these problems"
        )
    if engine.turns < turns:
        raise UserError(f"{engine.path} holds {engine.turns} turns, and {turns} are asked for: give fewer by --turns")
    if held < len(problems):
        logger.warning(
            "%s holds responses for %d of the %d problems: the others become errors", engine.path, held, len(problems)
        )


async def run_rollout(
    settings: RolloutSettings,
    problems: Sequence[Problem],
    work: Callable[[Problem], Awaitable[Mapping[str, Any]]],
    engine: CountingEngine,
    judge: Judge,
    *,
    stage: str,
    responses: Callable[[Problem], int],
    decided: Mapping[str, Any] | None = None,
) -> int:
    """Do `work` for each problem that the result does not hold yet; see `cobalt.stage.run.each`.

    Args:
        settings: Files, sampling and prompts.
        problems: All problems of the input; the run works on those that the settings choose.
        work: Makes the record of a problem.
        engine: Generates.
        judge: Judges.
        stage: Name of the stage in the manifest.
        responses: How many responses the engine is asked for a problem.
        decided: What decides the records besides the settings, engine and judge.
    """

    async def counted(problem: Problem) -> Mapping[str, Any]:
        engine.begin()
        try:
            return await work(problem)
        finally:
            engine.end(problem.id)

    with RecordFile(settings.output_file) as output:
        about = dict(await engine.describe())
        about.pop("device", None)  # it decides whether samples are seeded, which the manifest says of the sampling
        arguments = {
            "stage": stage,
            **settings.decisive(),
            **(decided or {}),
            "engine": about,
            "judge": dict(await judge.describe()),
        }
        chosen = settings.chosen(problems)
        engine.plan({problem.id: responses(problem) for problem in chosen if problem.id not in output.done})
        async with ticking(engine.standing, desc=stage.replace("_", " "), unit="responses"):
            failed = await each(
                problems,
                lambda problem: problem.id,
                counted,
                output,
                arguments=arguments,
                inputs=[settings.input_file],
                concurrency=settings.concurrency,
                description=None,
                only=frozenset(problem.id for problem in chosen),
                circumstances=settings.choice,
            )
    if engine.cached_tokens:
        logger.info(
            "%d of %d prompt tokens (%.0f %%) were in the engine's prefix cache",
            engine.cached_tokens,
            engine.prompt_tokens,
            100 * engine.cached_tokens / engine.prompt_tokens,
        )
    return failed


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
