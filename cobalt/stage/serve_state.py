"""Record that a running `cobalt serve` leaves for other terminals: one small file that only its user can read.

The file is in `$XDG_RUNTIME_DIR/cobalt`, or in `~/.cobalt/serve`. It says how to reach the services, and never holds a
token. Its process has it locked: a file that nobody has locked is stale, and is removed when it is met.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from cobalt.stage.errors import UserError, system_errors

logger = logging.getLogger(__name__)

Services = Literal["none", "judge", "judge and engine"]
"""Services that a command needs of a running `cobalt serve`."""

_ENGINE, _JUDGE = "COBALT_ENGINE_URL", "COBALT_JUDGE_URL"


@dataclass(frozen=True)
class ServeState:
    """One running `cobalt serve`, and the environment variables by which a process reaches its services."""

    pid: int
    model: str | None  # of the engine; None if only the judge runs
    variables: dict[str, str]

    def __str__(self) -> str:
        return f"`cobalt serve` with process id {self.pid} ({f'model {self.model}' if self.model else 'judge only'})"


_FORMAT = TypeAdapter(ServeState)


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "cobalt" if runtime else Path.home() / ".cobalt" / "serve"


@contextlib.contextmanager
def recorded_state(pid: int, model: str | None, environment: Mapping[str, str]) -> Iterator[ServeState]:
    """Keep the file of a running `cobalt serve` while the block runs; `environment` has the services' variables."""
    variables = {name: environment[name] for name in (_JUDGE, _ENGINE) if name in environment}
    state = ServeState(pid, None if model is None else _absolute(model), variables)
    path = _folder() / f"{pid}.json"
    with system_errors(f"cannot write {path}, by which other commands see this one"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.write(_FORMAT.dump_json(state))
        new.replace(path)  # it is locked from the moment in which others see it
        try:
            yield state
        finally:
            path.unlink(missing_ok=True)


def running_states() -> list[ServeState]:
    """Every `cobalt serve` of this user that runs; the files of those that have ended are removed."""
    running = []
    for path in sorted(_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError), path.open("rb") as handle:
            if os.fstat(handle.fileno()).st_uid != os.getuid():
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                running.append(_FORMAT.validate_json(handle.read()))
    return running


def use_running_services(settings: Any) -> None:
    """Let this process use the one `cobalt serve` that runs, as far as neither flags nor variables name the services.

    The user is told what of it is used. `settings` say by `services()` what they need, and may have the fields `model`,
    `judge_url` and `engine_url`.

    Raises:
        UserError: there are several, or its engine has another model than the command's `model`.
    """
    needed, model = settings.services(), getattr(settings, "model", None)
    wanted = [_JUDGE] if needed != "none" and not settings.judge_url else []
    wanted += [_ENGINE] if needed == "judge and engine" and not settings.engine_url else []
    wanted = [variable for variable in wanted if not os.environ.get(variable)]
    if os.environ.get("COBALT_HTTP") or not wanted or not (states := running_states()):
        return
    if len(states) > 1:
        raise UserError(
            f"{len(states)} `cobalt serve` are running ({', '.join(map(str, states))}): choose one by the variables"
            " that it has printed"
        )
    [state] = states
    used = {variable: state.variables[variable] for variable in wanted if variable in state.variables}
    if _ENGINE in used and model is not None and _absolute(model) != state.model:
        raise UserError(
            f"--model is {model}, and {state} is running: leave --model out, name another engine by"
            " --engine_url, or stop that one"
        )
    if used:
        os.environ.update(used)
        what = state if _ENGINE in used else f"the judge of `cobalt serve` with process id {state.pid}"
        logger.info("using %s at %s", what, " and ".join(used.values()))


def _absolute(model: str) -> str:
    """The name of a model as a state has it: the whole path of a folder."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model
