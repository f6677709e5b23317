"""`run_single_turn_vllm.py` and `run_multi_turn_vllm.py`, which start no engine.

They use the engine and the judge of their flags or variables, else a running `cobalt serve`, else the two apps of Ray
Serve on this machine, at its default port.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import field, replace
from typing import TypeVar

import httpx
from pydantic.dataclasses import dataclass

from cobalt.engine import Engine
from cobalt.engine.opening import engine_urls
from cobalt.judge.opening import judge_urls
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.shared import RolloutSettings
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage.errors import ServiceDown
from cobalt.stage.run import Outcome
from cobalt.stage.serve_state import use_running_services
from cobalt.stage.service_flags import EngineKind, Several

SERVE = "http://127.0.0.1:8000"
"""Address at which Ray Serve listens by default."""


@dataclass(frozen=True, kw_only=True)
class _Served(RolloutSettings):
    model: str | None = field(default=None, init=False)
    """No flag: the script starts no engine."""
    engine: Several = field(default=(), init=False)
    """No flag, as for model."""
    engine_kind: EngineKind | None = field(default=None, init=False)
    """No flag, as for model."""

    def opened(self) -> AbstractAsyncContextManager[Engine]:
        """The engine of the run.

        Raises:
            ServiceDown: none is running, and the run is not a replay.
        """
        if self.replay_file is None and not engine_urls(self.engine_url):
            raise ServiceDown(
                "no engine is running: start one with `cobalt serve --model MODEL`, or on Ray with `serve run"
                " vllm_engine_actor:app model=MODEL --name vllm_actor --route-prefix /vllm_actor`, or name one by"
                " --engine_url"
            )
        return super().opened()


@dataclass(frozen=True)
class ServedSampleSettings(_Served, SampleSettings):
    """Draw n programs for each problem from a running engine and judge each on all of its tests.

    Engine and judge are those of --engine_url and --judge_url, of a running `cobalt serve`, or the Ray Serve apps
    `vllm_actor` and `evaluator` on this machine. Without a judge this process judges. Running the same command again
    resumes.
    """


@dataclass(frozen=True)
class ServedRepairSettings(_Served, RepairSettings):
    """Let a model repair its programs with feedback from the public tests, turn after turn.

    The input is a single-turn result, whose responses are then the first turn, or a problem file. Engine and judge are
    those of --engine_url and --judge_url, of a running `cobalt serve`, or the Ray Serve apps `vllm_actor` and
    `evaluator` on this machine. Without a judge this process judges. Running the same command again resumes.
    """


Settings = TypeVar("Settings", bound=RolloutSettings)


async def single_turn(settings: ServedSampleSettings) -> Outcome:
    """The stage `sample` with running services."""
    return await sample(_with_services(settings))


async def multi_turn(settings: ServedRepairSettings) -> Outcome:
    """The stage `repair` with running services."""
    return await repair(_with_services(settings))


def _with_services(settings: Settings) -> Settings:
    use_running_services(settings)
    if not judge_urls(settings.judge_url) and not settings.judge and _answers("/evaluator"):
        settings = replace(settings, judge_url=(f"{SERVE}/evaluator",))
    if settings.replay_file is None and not engine_urls(settings.engine_url) and _answers("/vllm_actor"):
        settings = replace(settings, engine_url=(f"{SERVE}/vllm_actor",))
    return settings


def _answers(route: str) -> bool:
    """Whether Ray Serve on this machine has an app at a route, also one that asks for a token."""
    try:
        answer = httpx.get(f"{SERVE}{route}/describe", timeout=10, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code != 404
