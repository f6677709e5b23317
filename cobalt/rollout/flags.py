"""The flags that the inference scripts share, and the settings and engines made from them. `stage.cli` parses them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from cobalt.engine import Engine, GenerationSettings
from cobalt.engine.api_flags import ApiFlags
from cobalt.episode import TemplateThinking, TruncatedThinking
from cobalt.problems import hub
from cobalt.rollout.multi_turn import MultiTurnSettings
from cobalt.rollout.shared import Samples
from cobalt.rollout.single_turn import SingleTurnSettings
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_files
from cobalt.stage.serve_state import Services
from cobalt.stage.settings import read_settings


def sampling(**values: Any) -> GenerationSettings:
    """Sampling settings by the names of `GenerationSettings`.

    Raises:
        UserError: a value out of range; its flag is named.
    """
    if values["n"] < 1:
        raise UserError(f"num_completions is {values['n']}: it must be 1 or more")
    return read_settings(GenerationSettings, values, {}, "")


@dataclass(frozen=True)
class InferenceFlags:
    """Flags of single-turn and multi-turn inference; names and defaults are the paper's where it has them."""

    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Problems: a file (JSONL, JSON array or Parquet, also compressed by gzip), or a data set of the Hub as
    owner/name:split, such as osunlp/TACO-Cobalt:validation."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Result (JSONL), with its manifest next to it as .run.json. An existing result is resumed."""
    num_completions: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 16
    """Samples for each problem. If the input has a first turn, multi turn continues each of its samples; leave this
    flag out then, because a different number is refused."""
    temperature: float = 0.6
    """Sampling temperature."""
    top_p: float = 0.95
    """Nucleus sampling probability."""
    max_tokens: int = 8192
    """Maximum number of tokens in one response."""
    enable_thinking: bool = False
    """Show later turns only the answer of each response, at most 6,000 characters of it. The chat template does not see
    this flag. Single-turn inference has no later turns, and accepts the flag so that both commands take the same."""
    truncated_thinking: TruncatedThinking = "keep"
    """With enable_thinking, what later turns see of a response that was cut off inside its thinking: keep its first
    6,000 characters (paper), or drop them, which leaves an empty message."""
    chat_template_thinking: TemplateThinking = "default"
    """The chat template's switch enable_thinking: on or off; default does not pass it (paper)."""
    prompts: str | None = None
    """Prompt set: paper (the default), pocket, program, or a folder with system.jinja, first_turn.jinja and
    feedback.jinja. Refused if problems have the field instruction in other words."""
    limit: int | None = None
    """Work on the first so many problems alone. A larger limit, or none, goes on with the same result."""
    ids: tuple[str, ...] = ()
    """Work on the problems with these ids alone; of them the first, with a limit."""
    seed: int = 0
    """Seed of the run; if each sample is seeded, the same seed gives the same records."""
    concurrency: int = 64
    """Problems worked on at a time."""

    def generation(self) -> GenerationSettings:
        """The sampling settings that the flags ask for.

        Raises:
            UserError: a value out of range; it is named.
        """
        return sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            n=self.num_completions,
            chat_template_thinking=self.chat_template_thinking,
            seed=self.seed,
        )

    def which_samples(self) -> Samples:
        """Whether samples have seeds of their own; an API takes them or not."""
        return "seeded"

    def single_turn_settings(self) -> SingleTurnSettings:
        """The settings that the flags ask for."""
        return SingleTurnSettings(
            hub.input_file(self.input_file),
            self.output_file,
            self.generation(),
            prompts=self.prompts,
            concurrency=self.concurrency,
            samples=self.which_samples(),
            limit=self.limit,
            ids=self.ids,
        )


@dataclass(frozen=True)
class MultiTurnFlags(InferenceFlags):
    """Further flags of multi-turn inference."""

    turns: int = 8
    """Turns after the first one; the paper has 2 to collect trajectories and 8 to evaluate."""
    public_tests: Literal["benign", "perturbed"] = "benign"
    """The tests that feedback comes from; perturbed: those that preproc/run_perturbation.py made impossible."""
    allow: tuple[str, ...] = ()
    """Settings in which a first turn in the input may differ from this run, such as temperature or engine.model; the
    manifest names them. Without it a first turn that was made under other settings is refused."""

    def multi_turn_settings(self) -> MultiTurnSettings:
        """The settings that the flags ask for."""
        return MultiTurnSettings(
            hub.input_file(self.input_file),
            self.output_file,
            self.generation(),
            turns=self.turns,
            public_tests=self.public_tests,
            enable_thinking=self.enable_thinking,
            truncated_thinking=self.truncated_thinking,
            allow=self.allow,
            prompts=self.prompts,
            concurrency=self.concurrency,
            samples=self.which_samples(),
            limit=self.limit,
            ids=self.ids,
        )


@dataclass(frozen=True)
class VllmFlags(InferenceFlags):
    """Flags of the scripts that use the vLLM service."""

    samples: Samples = "auto"
    """seeded: each sample has a seed of its own, which follows from --seed, so that the same command gives the same
    records. unseeded: none has, which is faster on GPUs. auto: seeded if the engine runs on a CPU, unseeded on GPUs;
    an existing result goes on as it began."""
    replay_file: Path | None = None
    """Judge the responses recorded in this file instead of generating responses with vLLM."""

    def which_samples(self) -> Samples:
        """What the flag says."""
        return self.samples

    def services(self) -> Services:
        """The services that the flags need."""
        return "judge and engine" if self.replay_file is None else "judge"

    def engine(self) -> Engine:
        """The vLLM service, or the replay that the flags ask for."""
        from cobalt.engine.replay import ReplayEngine
        from cobalt.engine.vllm_client import ServeEngine

        if self.replay_file is None:
            return ServeEngine()
        check_files([self.replay_file], [self.output_file])
        return ReplayEngine(self.replay_file, self.num_completions)


@dataclass(frozen=True)
class LiteLLMFlags(ApiFlags, InferenceFlags):
    """Flags of the scripts that use proprietary models; the defaults are the paper's for these models."""

    temperature: float = 1.0
    """Sampling temperature."""
    top_p: float = 1.0
    """Nucleus sampling probability."""
    max_tokens: int = 32000
    """Maximum number of tokens in one response, hidden reasoning included."""
    concurrency: int = 8
    """Problems worked on at a time; concurrent_requests limits the requests of all of them."""

    def services(self) -> Services:
        """The services that the flags need."""
        return "judge"
