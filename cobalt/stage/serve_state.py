"""What a running `cobalt serve` leaves for other terminals: one small file that only its user can read.

The file is in `$XDG_RUNTIME_DIR/cobalt`, or in `~/.cobalt/serve`. It says how to reach the services, and whose process
they belong to. A file whose process has ended is stale and is removed when it is met. The file never holds a token.
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from cobalt.stage.errors import UserError

logger = logging.getLogger(__name__)

Services = Literal["none", "judge", "judge and engine"]
"""What a command needs of a running `cobalt serve`."""

_ENGINE, _JUDGE = "COBALT_ENGINE_URL", "COBALT_JUDGE_URL"
_NAMES = (_JUDGE, _ENGINE)
"""Variables by which another terminal reaches the services."""


@dataclass(frozen=True, slots=True)
class ServeState:
    """One running `cobalt serve`.

    Attributes:
        pid: Its process.
        started: When the process started, in clock ticks since boot; tells it from a later process with the same id.
        model: Model of the engine; None if only the judge runs.
        variables: Environment variables by which a process reaches the services.
    """

    pid: int
    started: int
    model: str | None
    variables: Mapping[str, str]

    def describe(self, needed: Services = "judge and engine") -> str:
        """The services in a few words; without the engine's model where only the judge is needed."""
        name = f"`cobalt serve` with process id {self.pid}"
        if needed == "judge":
            return f"the judge of {name}"
        return f"{name} ({f'model {self.model}' if self.model else 'judge only'})"


def state_folder() -> Path:
    """Where the files are."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "cobalt" if runtime else Path.home() / ".cobalt" / "serve"


@contextlib.contextmanager
def recorded_state(pid: int, model: str | None, environment: Mapping[str, str]) -> Iterator[ServeState]:
    """Keep the file of a running `cobalt serve` while the block runs.

    Args:
        pid: The process whose end ends the services.
        model: Model of the engine, or None.
        environment: An environment that has the variables of the services.

    Raises:
        UserError: the file cannot be written.
    """
    variables = {name: environment[name] for name in _NAMES if name in environment}
    state = ServeState(pid, _started(pid) or 0, None if model is None else _absolute(model), variables)
    path = state_folder() / f"{pid}.json"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a former process with this id
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            json.dump(asdict(state), handle)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): `cobalt attach` reads it") from None
    try:
        yield state
    finally:
        path.unlink(missing_ok=True)


def running_states() -> list[ServeState]:
    """Every `cobalt serve` of this user that runs; the files of those that have ended are removed."""
    running = []
    for path in sorted(state_folder().glob("*.json")):
        state = _read(path)
        if state is not None and state.started == _started(state.pid):
            running.append(state)
        elif state is not None:
            with contextlib.suppress(OSError):  # of a folder that cannot be written
                path.unlink()
    return running


def choose_state(pid: int | None = None) -> ServeState:
    """The running `cobalt serve`, which must be one; `pid` chooses among several.

    Raises:
        UserError: there is none, or several and `pid` does not choose among them.
    """
    states = running_states()
    if pid is not None:
        states = [state for state in states if state.pid == pid]
    if not states:
        raise UserError(
            f"no `cobalt serve` is running{'' if pid is None else f' with process id {pid}'}: start one in another"
            " terminal (cobalt serve --model MODEL)"
        )
    if len(states) > 1:
        raise UserError(
            f"{len(states)} `cobalt serve` are running ({', '.join(state.describe() for state in states)}): choose one"
            " with `cobalt attach --pid ID -- COMMAND`"
        )
    return states[0]


def use_running_services(
    needed: Services = "judge and engine",
    *,
    model: str | None = None,
    judge_named: bool = False,
    engine_named: bool = False,
) -> None:
    """Let this process use the one `cobalt serve` that runs, as far as neither flags nor variables name the services.

    The user is told what of it is used.

    Args:
        needed: The services that the command needs.
        model: The model that the user asks for.
        judge_named: Whether a flag names the judge.
        engine_named: Whether a flag names the engine.

    Raises:
        UserError: there are several, or its engine has another model.
    """
    anywhere = bool(os.environ.get("COBALT_HTTP"))
    wanted = [
        variable
        for variable, named in ((_JUDGE, judge_named), (_ENGINE, engine_named))
        if not (named or anywhere or os.environ.get(variable)) and (variable == _JUDGE or needed == "judge and engine")
    ]
    if not wanted or needed == "none" or not running_states():
        return
    state = choose_state()
    used = {variable: state.variables[variable] for variable in wanted if variable in state.variables}
    if _ENGINE in used and model is not None and _absolute(model) != state.model:
        raise UserError(
            f"--model is {model}, and {state.describe()} is running: leave --model out, name another engine by"
            " --engine_url, or stop that one"
        )
    if used:
        os.environ.update(used)
        what = state.describe("judge and engine" if _ENGINE in used else "judge")
        logger.info("using %s at %s", what, " and ".join(used.values()))


def _absolute(model: str) -> str:
    """The name of a model as a state has it: the whole path of a folder."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model


def _read(path: Path) -> ServeState | None:
    """A file's state; None where it is not one, or not this user's."""
    try:
        if path.stat().st_uid != os.getuid():
            return None
        fields = json.loads(path.read_text(encoding="utf-8"))
        return ServeState(int(fields["pid"]), int(fields["started"]), fields["model"], dict(fields["variables"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
