"""What single turn and multi turn share: settings, seeds of calls, the run over all problems of a file, and its end."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic.dataclasses import dataclass

from cobalt.engine import Call, Completion, Engine, GenerationSettings, derive_seed
from cobalt.engine.replay import ReplayEngine
from cobalt.episode import TemplateThinking, TruncatedThinking, check_wording, load_prompts
from cobalt.episode.trajectory import Turn
from cobalt.judge import Judge
from cobalt.problems import hub
from cobalt.problems.problem import Problem, ProblemId, choose_problems
from cobalt.rollout.progress import CountingEngine
from cobalt.stage.errors import UserError, naming
from cobalt.stage.files import check_files
from cobalt.stage.manifest import check_made_with, companion_path, recorded_arguments
from cobalt.stage.progress import ticking
from cobalt.stage.run import Concurrency, Each, Flag, OptionalFile, Output, check_concurrency
from cobalt.stage.serve_state import Services
from cobalt.stage.service_flags import EngineFlags, JudgeFlags
from cobalt.stage.settings import read_settings

logger = logging.getLogger(__name__)

Samples = Literal["auto", "seeded", "unseeded"]
"""Whether each sample has a seed of its own; "auto": `decide_samples` says."""


def sampling(**values: Any) -> GenerationSettings:
    """Sampling settings by the names of `GenerationSettings`.

    Raises:
        UserError: a value out of range; its flag is named.
    """
    if values["n"] < 1:
        raise UserError(f"num_completions is {values['n']}: it must be 1 or more")
    return read_settings(GenerationSettings, values, {}, "")


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How responses are drawn, and for which problems; names and defaults are the paper's."""

    temperature: float = 0.6
    """Sampling temperature."""
    top_p: float = 0.95
    """Nucleus sampling probability."""
    max_tokens: int = 8192
    """Maximum number of tokens in one response."""
    prompts: str | None = None
    """Prompt set: paper (the default), pocket, program, or a folder with system.jinja, first_turn.jinja and
    feedback.jinja. Refused if problems have the field instruction in other words."""
    ids: tuple[str, ...] = ()
    """Work on the problems with these ids alone; of them the first, with a limit."""


@dataclass(frozen=True)
class _Files:
    input_file: Annotated[Path, Flag(None, "-i")]
    """Problems: a file (JSONL, JSON array or Parquet, also compressed by gzip), or a data set of the Hub as
    owner/name:split, such as osunlp/TACO-Cobalt:validation."""
    output_file: Output
    """Result (JSONL), with its manifest next to it as .run.json. An existing result is resumed."""
    num_completions: Annotated[int, Flag(None, "-n")] = 16
    """Samples for each problem. If the input has a first turn, multi turn continues each of its samples; leave this
    flag out then, because a different number is refused."""


@dataclass(frozen=True)
class RolloutSettings(EngineFlags, JudgeFlags, SamplingFlags, _Files):
    """Settings of single turn and of multi turn; names and defaults are the paper's where it has them."""

    stage: ClassVar[str]  # its name in the manifest

    enable_thinking: bool = False
    """Show later turns only the answer of each response, at most 6,000 characters of it. The chat template does not see
    this flag. Single-turn inference has no later turns, and accepts the flag so that both commands take the same."""
    truncated_thinking: TruncatedThinking = "keep"
    """With enable_thinking, what later turns see of a response that was cut off inside its thinking: keep its first
    6,000 characters (paper), or drop them, which leaves an empty message."""
    chat_template_thinking: TemplateThinking = "default"
    """The chat template's switch enable_thinking: on or off; default does not pass it (paper)."""
    limit: int | None = None
    """Work on the first so many problems alone. A larger limit, or none, goes on with the same result."""
    seed: int = 0
    """Seed of the run; if each sample is seeded, the same seed gives the same records."""
    concurrency: Concurrency = 64
    samples: Samples = "auto"
    """seeded: each sample has a seed of its own, which follows from --seed, so that the same command gives the same
    records. unseeded: none has, which is faster on GPUs. auto: seeded if the engine runs on a CPU, unseeded on GPUs;
    an existing result goes on as it began."""
    replay_file: OptionalFile = None
    """Judge the responses recorded in this file; no engine is needed."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        check_concurrency(self.concurrency)
        _ = self.generation

    @property
    def generation(self) -> GenerationSettings:
        """How responses are drawn; its `seed` is the run's seed, None without one.

        Raises:
            UserError: a value out of range; it is named.
        """
        return sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            n=self.num_completions,
            chat_template_thinking=self.chat_template_thinking,
            seed=None if self.samples == "unseeded" else self.seed,
        )

    def services(self) -> Services:
        """The services that the run needs."""
        return "judge and engine" if self.replay_file is None else "judge"

    def opened(self) -> AbstractAsyncContextManager[Engine]:
        """The engine of the run: behind a URL, vLLM in this process, or the replay of `replay_file`.

        Raises:
            UserError: no engine is named, a setting of it is wrong, or the model is not there.
            InfrastructureError: the model is not on this machine, and the Hub does not answer.
        """
        from cobalt.engine.model_check import check_model
        from cobalt.engine.opening import engine_urls, open_vllm_or_url

        if self.replay_file is not None:
            return nullcontext(ReplayEngine(self.replay_file, self.num_completions))
        if self.model is not None and not engine_urls(self.engine_url):
            check_model(self.model)  # vLLM would find it out after half a minute
        log = companion_path(self.output_file, ".engine.log")
        return open_vllm_or_url(model=self.model, urls=self.engine_url, settings=self.engine, log=log)

    def opened_result(self) -> Each:
        """The result, which no other process may write meanwhile. `run_rollout` and `finish` complete its arguments."""
        arguments = {"stage": self.stage}
        return Each(self.output_file, arguments, [self.input_file], circumstances=self.choice)

    def with_input(self) -> Self:
        """The settings with a file as input, where that is a data set of the Hub.

        Raises:
            UserError: the prompt set or the input cannot be read, or the result would replace the input.
        """
        load_prompts(self.prompts)
        settings = replace(self, input_file=hub.input_file(self.input_file))
        check_files([settings.input_file], [settings.output_file])
        return settings

    def decisive(self) -> dict[str, Any]:
        """What decides the records, as the manifest has it; without the services."""
        return {"generation": self.generation.model_dump(), "prompts": load_prompts(self.prompts).digests}

    def check_earlier(self, services: Mapping[str, Any] | None = None) -> None:
        """Compare the settings, and what is known of the services, with an existing result's, before services start.

        Raises:
            UserError: the result was made with other settings; they are named.
        """
        given = self.decisive() | dict(services or {})
        recorded = (recorded_arguments(self.output_file) or {}).get("generation", {})
        if self.samples == "auto" and recorded.get("seed") is None:
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
            with naming(str(self.input_file)):
                check_wording(problem, prompts)


Settings = TypeVar("Settings", bound=RolloutSettings)


async def decide_samples(settings: Settings, engine: Engine | None) -> Settings:
    """The settings of a run, without a seed if its samples are unseeded; the manifest records the seed.

    "auto" goes on as an existing result began, which needs no engine. A new result is seeded unless the engine runs on
    GPUs, where sums depend on the batch, so that the same seeds may give other samples.

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
        elif engine is not None:
            samples = "unseeded" if (await engine.describe()).get("device") == "gpu" else "seeded"
    return settings if samples == settings.samples else replace(settings, samples=samples)


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
    output: Each,
    problems: Sequence[Problem],
    work: Callable[[Problem], Awaitable[Mapping[str, Any]]],
    services: tuple[CountingEngine, Judge],
    decided: Mapping[str, Any] | None = None,
) -> int:
    """Do `work` for each problem that the result does not hold yet; see `cobalt.stage.run.Each`.

    Args:
        settings: Files, sampling and prompts.
        output: The result.
        problems: All problems of the input; the run works on those for which the engine plans responses.
        work: Makes the record of a problem.
        services: Generates, and judges.
        decided: What decides the records besides the settings, engine and judge.
    """
    engine, judge = services

    async def counted(problem: Problem) -> Mapping[str, Any]:
        try:
            return await work(problem)
        finally:
            engine.end(problem.id)

    described = {"engine": dict(await engine.describe()), "judge": dict(await judge.describe())}
    output.arguments |= {**settings.decisive(), **(decided or {}), **described}
    chosen = frozenset(engine.planned)
    engine.begin(output.done)
    async with ticking(engine.standing, desc=settings.stage.replace("_", " "), unit="response"):
        failed = await output.make(
            problems, lambda problem: problem.id, counted, concurrency=settings.concurrency, only=chosen
        )
    if engine.cached_tokens:
        cached, tokens = engine.cached_tokens, engine.prompt_tokens
        words = "%d of %d prompt tokens (%.0f %%) were in the engine's prefix cache"
        logger.info(words, cached, tokens, 100 * cached / tokens)
    return failed


async def is_finished(
    settings: RolloutSettings, output: Each, problems: Sequence[Problem], chosen: Sequence[Problem]
) -> bool:
    """Whether the result holds every chosen problem, so that neither engine nor judge is needed.

    Such a result is compared with the settings, and sorted.

    Raises:
        UserError: other settings or another input made it.
    """
    if not output.done.issuperset(problem.id for problem in chosen):
        return False

    async def work(problem: Problem) -> Mapping[str, Any]:
        raise AssertionError(problem.id)

    output.arguments |= (await decide_samples(settings, None)).decisive()
    only: frozenset[ProblemId] = frozenset(problem.id for problem in chosen)
    await output.make(problems, lambda problem: problem.id, work, concurrency=1, only=only)
    return True


def using(engine: Engine | None, settings: RolloutSettings) -> AbstractAsyncContextManager[Engine]:
    """The engine that is given, or that of the settings, as a context."""
    return settings.opened() if engine is None else nullcontext(engine)


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


class CutOff:
    """The share of a result's responses that ended at a token limit."""

    def __init__(self, result: Path) -> None:
        """Read the limit of a result from its manifest; without one no limit is known."""
        self._limit: int | None = (recorded_arguments(result) or {}).get("generation", {}).get("max_tokens")
        self._ends: Counter[str] = Counter()

    def count(self, turns: Iterable[Turn]) -> None:
        """Count responses."""
        for turn in turns:
            if turn.finish_reason != "length":
                self._ends["other"] += 1
            elif self._limit is None or (turn.completion_tokens or 0) >= self._limit:
                self._ends["max_tokens"] += 1
            else:
                self._ends["context"] += 1

    def lines(self) -> list[str]:
        """A line for each limit that cut responses off, with what to do."""
        limit, total = f" {self._limit}" if self._limit else "", self._ends.total()
        advice = {
            "max_tokens": f"were cut off by --max_tokens{limit}, and a program that was not complete fails: give a"
            " larger --max_tokens, with another -o",
            "context": "were cut off at the longest context of the model or engine (max_model_len): give one with a"
            " longer context, or fewer --turns, with another -o",
        }
        return [
            f"{percent(self._ends[end], total)} of the responses ({self._ends[end]} of {total}) {words}"
            for end, words in advice.items()
            if self._ends[end]
        ]


def percent(part: int, whole: int) -> str:
    """A share in words."""
    return f"{100 * part / whole:.1f} %" if whole else "none"
