"""The flags by which a command names its judge and its engine. Without them it uses those of this process.

A judge or an engine behind a URL is named by the flag, else by `COBALT_JUDGE_URL` or `COBALT_ENGINE_URL` (several URLs
with blanks between them), else by `COBALT_HTTP`, the address below which both are (`/evaluator`, `/vllm_actor`). A
command of `cobalt` then looks for a running `cobalt serve` (`cobalt.stage.serve_state`).
"""

from collections.abc import Sequence
from typing import Any, Literal

import tyro
from pydantic.dataclasses import dataclass

EngineKind = Literal["vllm", "litellm"]
Several = tyro.conf.UseAppendAction[tuple[str, ...]]
"""The values of a flag that may be given several times."""

_NAMED_AGAIN = ("judge_url", "judge", "engine_url", "engine")


@dataclass(frozen=True, kw_only=True)
class JudgeFlags:
    """The judge of a command."""

    judge_url: Several = ()
    """URL of a judge, such as http://127.0.0.1:8001/evaluator; several times for several judges. Its token, if it has
    one, is the variable COBALT_JUDGE_TOKEN. Without a URL programs are judged in this process."""
    judge: Several = ()
    """A setting of the judge of this process, as key=value, such as comparison=float; may be given several times. The
    message about an unknown key lists all keys."""


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """The engine of a command."""

    model: str | None = None
    """Model folder or hub name, for vLLM in this process; or a provider's model, as LiteLLM names it, which has further
    flags (cobalt sample --model gpt-5-mini --help)."""
    engine_url: Several = ()
    """URL of an engine: http://127.0.0.1:8000/vllm_actor, or any OpenAI-compatible server; several times for several
    engines. Its token, if it has one, is the variable COBALT_VLLM_TOKEN."""
    engine: Several = ()
    """A setting of vLLM in this process, as key=value, such as max_model_len=4096; as for --judge."""
    engine_kind: EngineKind | None = None
    """Kind of --model, where it can be both: vllm (a model on this machine) or litellm (a provider's)."""


def same_services(settings: Any, names: Sequence[str] = _NAMED_AGAIN) -> list[str]:
    """The flags, as words of a command line, with which another command uses the services that settings name."""
    return [word for name in names for value in getattr(settings, name, ()) for word in (f"--{name}", value)]
