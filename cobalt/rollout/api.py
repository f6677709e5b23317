"""Single turn and multi turn with a proprietary model: its flags, and the paper's defaults for such models."""

from contextlib import AbstractAsyncContextManager
from dataclasses import field
from pathlib import Path

from pydantic.dataclasses import dataclass

from cobalt.engine import Engine
from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.litellm_engine import open_engine
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.shared import RolloutSettings, Samples
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage.run import Outcome
from cobalt.stage.serve_state import Services
from cobalt.stage.service_flags import Several


@dataclass(frozen=True, kw_only=True)
class _Api(ApiFlags, RolloutSettings):
    temperature: float = 1.0
    """Sampling temperature; the paper has 1 for models behind an API."""
    top_p: float = 1.0
    """Nucleus sampling probability; the paper has 1 for models behind an API."""
    max_tokens: int = 32000
    """Maximum number of tokens in one response, hidden reasoning included."""
    concurrency: int = 8
    """Problems worked on at a time; concurrent_requests limits the requests of all of them."""
    samples: Samples = field(default="seeded", init=False)
    """A provider takes the seeds or not."""
    replay_file: Path | None = field(default=None, init=False)
    """No flag: a replay needs no provider."""
    model: str | None = field(default=None, init=False)
    """No flag: model_name is the flag --model here."""
    engine_url: Several = field(default=(), init=False)
    """No flag: a server is named by api_base."""
    engine: Several = field(default=(), init=False)
    """No flag: it is for vLLM."""

    def services(self) -> Services:
        """The services that the run needs."""
        return "judge"

    def opened(self) -> AbstractAsyncContextManager[Engine]:
        """The engine of the run, with the log of the calls that were paid for its result."""
        return open_engine(self, self.output_file)


@dataclass(frozen=True)
class ApiSampleSettings(_Api, SampleSettings):
    """Draw n programs for each problem from a model behind an API and judge each on all of its tests.

    Needs a key. Running the same command again resumes; answers that were paid for are kept in OUTPUT.calls.jsonl.
    """


@dataclass(frozen=True)
class ApiRepairSettings(_Api, RepairSettings):
    """Let a model behind an API repair its programs with feedback from the public tests, turn after turn.

    The input is a single-turn result, whose responses are then the first turn, or a problem file. Needs a key. Running
    the same command again resumes; answers that were paid for are kept in OUTPUT.calls.jsonl.
    """


async def sample_by_api(settings: ApiSampleSettings) -> Outcome:
    """The stage `sample` with the model of a provider."""
    return await sample(settings)


async def repair_by_api(settings: ApiRepairSettings) -> Outcome:
    """The stage `repair` with the model of a provider."""
    return await repair(settings)
