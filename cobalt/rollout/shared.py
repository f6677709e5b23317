"""Base of single turn and multi turn: settings, seeds of calls, the run over all problems of a file, and its end."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic.dataclasses import dataclass
from tqdm import tqdm

from cobalt.engine import Call, Completion, Engine, GenerationSettings, derive_seed
from cobalt.engine.opening import EngineOnUse, open_vllm_or_url
from cobalt.engine.replay import ReplayEngine
from cobalt.episode import Message, TemplateThinking, TruncatedThinking, check_wording, load_prompts
from cobalt.episode.trajectory import Turn
from cobalt.judge import Judge
from cobalt.judge.opening import using_judge
from cobalt.problems.problem import Problem, ProblemId, choose_problems
from cobalt.stage.errors import naming
from cobalt.stage.manifest import check_made_with, companion_path, recorded_arguments
from cobalt.stage.progress import ticking
from cobalt.stage.run import Concurrency, Each, Flag, Input, OptionalFile, Output, check_ranges
from cobalt.stage.serve_state import Services
from cobalt.stage.service_flags import EngineFlags, JudgeFlags
from cobalt.stage.settings import read_settings

Samples = Literal["auto", "seeded", "unseeded"]
"""Whether each sample has a seed of its own; "auto": `run_rollout` says."""


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """Flags for drawing responses: settings, problems, and what later turns see of them; defaults are the paper's."""

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
    seed: int = 0
    """Seed of the run; if each sample is seeded, the same seed gives the same records."""
    enable_thinking: bool = False
    """Show later turns only the answer of each response, at most 6,000 characters of it. The chat template does not see
    this flag. Single-turn inference has no later turns, and accepts the flag so that both commands take the same."""
    truncated_thinking: TruncatedThinking = "keep"
    """With enable_thinking, what later turns see of a response that was cut off inside its thinking: keep its first
    6,000 characters (paper), or drop them, which leaves an empty message."""


@dataclass(frozen=True)
class _Files:
    input_file: Input
    """Problems (JSONL, JSON array or Parquet, also compressed by gzip); also a single-turn result."""
    output_file: Output
    """Result (JSONL), with its manifest next to it as .run.json. An existing result is resumed."""
    num_completions: Annotated[int, Flag(None, "-n")] = 16
    """Samples for each problem. If the input has a first turn, multi turn continues each of its samples; leave this
    flag out then, because a different number is refused."""


@dataclass(frozen=True)
class RolloutSettings(EngineFlags, JudgeFlags, SamplingFlags, _Files):
    """Settings of single turn and of multi turn; names and defaults are the paper's where it has them."""

    stage: ClassVar[str]  # its name in the manifest

    chat_template_thinking: TemplateThinking = "default"
    """The chat template's switch enable_thinking: on or off; default does not pass it (paper)."""
    limit: int | None = None
    """Work on the first so many problems alone. A larger limit, or none, goes on with the same result."""
    concurrency: Concurrency = 64
    samples: Samples = "auto"
    """seeded: each sample has a seed of its own, which follows from --seed, so that the same command gives the same
    records. unseeded: none has, which is faster on GPUs. auto: seeded if the engine runs on a CPU, unseeded on GPUs;
    an existing result goes on as it began."""
    replay_file: OptionalFile = None
    """Judge the responses recorded in this file; no engine is needed."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        check_ranges(
            self,
            ("concurrency", self.concurrency >= 1, "1 or more"),
            ("num_completions", self.num_completions >= 1, "1 or more"),
        )
        _ = self.generation

    @property
    def generation(self) -> GenerationSettings:
        """Settings for drawing responses, with the run's seed or None. Raises UserError: a value is out of range."""
        same = ("temperature", "top_p", "max_tokens", "chat_template_thinking")
        values = {name: getattr(self, name) for name in same}
        values |= {"n": self.num_completions, "seed": None if self.samples == "unseeded" else self.seed}
        return read_settings(GenerationSettings, values, {}, "")

    @property
    def programs(self) -> int:
        """Programs of each trajectory."""
        return 1

    def services(self) -> Services:
        """The services that the run needs."""
        return "judge and engine" if self.replay_file is None else "judge"

    def opened(self) -> AbstractAsyncContextManager[Engine]:
        """The engine of the run: the replay of `replay_file`, or that of `open_vllm_or_url`."""
        if self.replay_file is not None:
            return nullcontext(ReplayEngine(self.replay_file))
        log = companion_path(self.output_file, ".engine.log")
        return open_vllm_or_url(model=self.model, urls=self.engine_url, settings=self.engine, log=log)

    def decisive(self) -> dict[str, Any]:
        """Settings that decide the records, as the manifest has them; without the services."""
        return {"generation": self.generation.model_dump(), "prompts": load_prompts(self.prompts).digests}

    def as_begun(self) -> Self:
        """The settings of an existing result's samples, where they are "auto"; such a result needs no engine for it."""
        begun = self.output_file.exists() and self.output_file.stat().st_size > 0
        generation = ((recorded_arguments(self.output_file) if begun else None) or {}).get("generation")
        if self.samples != "auto" or generation is None:
            return self
        return replace(self, samples="unseeded" if generation.get("seed") is None else "seeded")

    def chosen(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems that the run works on, of all in its input; raises UserError: there is none with a chosen id."""
        return choose_problems(problems, self.input_file, self.limit, self.ids)

    def check_wording(self, problems: Sequence[Problem]) -> None:
        """Raise UserError if a prompt set is named that does not word the first messages which the problems have."""
        prompts = load_prompts(self.prompts)
        for problem in problems if self.prompts is not None else ():
            with naming(str(self.input_file)):
                check_wording(problem, prompts)


class CountingEngine:
    """An engine whose answers are counted, to say how far a run of `planned` responses is.

    Problems would say less: many are worked on at a time, so that all may finish in the last minute.
    """

    def __init__(self, engine: Engine, planned: int) -> None:
        self._engine, self._planned = engine, planned
        self._responses = self._tokens = 0
        self._began: float | None = None  # with the first call, when the engine has started

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """See `Engine.generate`."""
        self._began = _now() if self._began is None else self._began
        completions = await self._engine.generate(conversation, settings, call)
        self._responses += len(completions)
        self._tokens += sum(completion.completion_tokens for completion in completions)
        return completions

    async def describe(self) -> Mapping[str, Any]:
        """See `Engine.describe`; without `device`, which decides only whether samples are seeded."""
        return {name: value for name, value in (await self._engine.describe()).items() if name != "device"}

    def standing(self) -> tuple[int, int, str]:
        """Progress of the run, for `ticking`; the rest is expected to go on at the mean rate of responses so far."""
        seconds = 1e-9 if self._began is None else max(_now() - self._began, 1e-9)
        left = self._planned - self._responses
        words = [
            f"{self._tokens:,} tokens",
            f"{self._tokens / seconds:,.0f} tokens/s",
            f"{tqdm.format_interval(seconds)} so far",
        ]
        if self._responses and left:
            words.append(f"about {tqdm.format_interval(seconds * left / self._responses)} left")
        return self._responses, self._planned, ", ".join(words)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def run_rollout(
    settings: RolloutSettings,
    problems: Sequence[Problem],
    planned: Mapping[ProblemId, int],
    services: tuple[Engine | None, Judge | None],
    work: Callable[[Problem, Engine, Judge, GenerationSettings], Awaitable[Mapping[str, Any]]],
    decided: Callable[[Engine], Awaitable[Mapping[str, Any]]] | None = None,
) -> int:
    """Do `work` for each problem that the result does not hold yet; see `cobalt.stage.run.Each`.

    An existing result is compared with the settings before services start; a finished one needs neither engine nor
    judge. A new one is seeded, as "auto", unless the engine runs on GPUs, where sums depend on the batch, so that the
    same seeds may give other samples.

    Args:
        settings: Files, sampling and prompts.
        problems: All problems of the input.
        planned: The problems to work on, each with the number of its responses.
        services: Engine and judge; None: those of the settings.
        work: Makes the record of a problem.
        decided: Finds what decides the records besides settings, engine and judge; called before anything is written.

    Returns:
        Number of problems that failed.
    """
    arguments, settings = {"stage": settings.stage}, settings.as_begun()
    check_made_with(settings.output_file, settings.decisive())
    async with using(services[0], settings) as opened, using_judge(services[1], settings) as judge:
        with Each(settings.output_file, arguments, [settings.input_file]) as output:
            left = {problem: number for problem, number in planned.items() if problem not in output.done}
            engine = CountingEngine(opened, sum(left.values()))
            if isinstance(opened, ReplayEngine):
                opened.check(left, settings.num_completions, settings.programs)
            if left:
                output.arguments |= await decided(opened) if decided else {}
                output.arguments |= {"engine": dict(await engine.describe()), "judge": dict(await judge.describe())}
            if settings.samples == "auto":
                unseeded = (await opened.describe()).get("device") == "gpu"
                settings = replace(settings, samples="unseeded" if unseeded else "seeded")
            output.arguments |= settings.decisive()
            generation = settings.generation
            async with ticking(engine.standing, desc=settings.stage.replace("_", " "), unit="response"):
                return await output.make(
                    problems,
                    lambda problem: problem.id,
                    lambda problem: work(problem, engine, judge, generation),
                    concurrency=settings.concurrency,
                    only=frozenset(planned),
                )


def using(engine: Engine | None, settings: RolloutSettings) -> AbstractAsyncContextManager[Engine]:
    """The engine that is given, or that of the settings, as a context; one that takes long to start when it is used."""
    if engine is not None:
        return nullcontext(engine)
    return EngineOnUse(settings.opened) if settings.replay_file is None else settings.opened()


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


def cut_off(ends: Counter[str | None]) -> list[str]:
    """A line on the responses that a token limit cut off, if any, from the number of responses by `finish_reason`."""
    cut, total = ends["length"], ends.total()
    advice = "give a larger --max_tokens, or a model or engine with a longer context (max_model_len), with another -o"
    words = "were cut off at a token limit, and a program that was not complete fails"
    return [f"{percent(cut, total)} of the responses ({cut} of {total}) {words}: {advice}"] if cut else []


def percent(part: int, whole: int) -> str:
    """A share in words."""
    return f"{100 * part / whole:.1f} %" if whole else "none"
