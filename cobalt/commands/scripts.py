"""`run_single_turn_vllm.py` and `run_multi_turn_vllm.py`: `cobalt sample` and `cobalt repair` for the paper's commands.

They use the engine and the judge of their flags or variables, else a running `cobalt serve`, else the two apps of Ray
Serve on this machine, at its default port.
"""

from dataclasses import replace
from typing import TypeVar

import httpx

from cobalt.engine.opening import engine_urls
from cobalt.judge.opening import judge_urls
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.shared import RolloutSettings
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage.run import Outcome
from cobalt.stage.serve_state import use_running_services

SERVE = "http://127.0.0.1:8000"
"""Where Ray Serve listens by default."""

Settings = TypeVar("Settings", bound=RolloutSettings)


async def single_turn(settings: SampleSettings) -> Outcome:
    """The stage `sample` with running services."""
    return await sample(_with_services(settings))


async def multi_turn(settings: RepairSettings) -> Outcome:
    """The stage `repair` with running services."""
    return await repair(_with_services(settings))


def _with_services(settings: Settings) -> Settings:
    use_running_services(settings)
    if not judge_urls(settings.judge_url) and not settings.judge and _answers("/evaluator"):
        settings = replace(settings, judge_url=(f"{SERVE}/evaluator",))
    engine_is_named = settings.replay_file or settings.model or engine_urls(settings.engine_url)
    if not engine_is_named and _answers("/vllm_actor"):
        settings = replace(settings, engine_url=(f"{SERVE}/vllm_actor",))
    return settings


def _answers(route: str) -> bool:
    """Whether Ray Serve on this machine has an app at a route, also one that asks for a token."""
    try:
        answer = httpx.get(f"{SERVE}{route}/describe", timeout=10, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code != 404
