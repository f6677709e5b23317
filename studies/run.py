"""Run a study: each step that is not done, in order, with the services that it needs.

Services are started once for neighbouring steps that need the same ones. A step's output goes to its log in the study's
folder; when the step succeeds, a line is added to `steps.jsonl` there. The first failure ends the study.
"""

import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from cobalt.serving.children import variables
from cobalt.serving.services import ServiceFlags
from cobalt.stage.cli import terminations_as_interrupts
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import CobaltError, UserError
from cobalt.stage.manifest import open_manifest
from cobalt.stage.records import RecordFile
from studies.plan import Services, Step, Study, digests, is_done, step_records

logger = logging.getLogger(__name__)

_SHOWN_LINES = 20
"""How many lines of a failed step's log are shown."""

_STOPS = ((signal.SIGINT, 60.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""How a step is stopped: signals, each with the seconds that it may take until the next one is sent."""


def run_study(study: Study, show: Callable[[str], object]) -> int:
    """Run every step that is not done; `show` is called with the output of each step that is `shown`.

    Returns:
        0, or the exit code of the step that failed (128 + N when signal N ended it).

    Raises:
        UserError: what another study makes is missing, or the folder cannot be written, is in use, or was begun with
            other arguments.
        KeyboardInterrupt: the study was stopped; the step that was running is stopped too.
    """
    for path in study.inputs:
        if not (study.root / path).exists():
            raise UserError(f"{path} is not there: run {study.made_by} first")
    clock = time.monotonic()

    def say(message: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - clock), 60)
        logger.info("%s, %d:%02d min: %s", study.name, minutes, seconds, message)

    with terminations_as_interrupts(), RecordFile(study.record_file) as output, _OpenServices(study.root) as services:
        try:
            open_manifest(study.record_file, {"study": study.name, **study.arguments})
        except UserError as error:
            raise UserError(
                f"{study.folder} cannot be this study's folder, name another as OUTPUT_DIR: {error}"
            ) from None
        records = step_records(study)
        for step in study.steps:
            if is_done(study, step, records.get(step.name)):
                say(f"{step.name} is done")
                continue
            log = study.folder / "logs" / f"{step.name}.log"
            say(f"{step.name}: {step.purpose} Log: {log}\n  {shlex.join(step.command)}")
            code, said, record = _run_step(study, step, study.root / log, services)
            if code:
                logger.error(
                    "%s\n%s: step %s failed with exit code %d; its log is %s; the same command goes on from there",
                    *(said, study.name, step.name, code, log),
                )
                return code
            output.append({"id": max(map(int, output.ids), default=0) + 1, **record})
            if step.shown:
                show(said)
        say(study.closing)
    return 0


def _run_step(study: Study, step: Step, log: Path, services: "_OpenServices") -> tuple[int, str, dict[str, Any]]:
    """Run a step; returns its exit code, what it has said (of a failed one the last lines), and its record."""
    log.parent.mkdir(parents=True, exist_ok=True)
    clock, started = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with log.open("ab") as file:
        begin = file.tell()
        try:
            environment = _environment() | services.variables_for(step.services)
        except CobaltError as error:
            return 1, str(error), {}
        services_seconds = time.monotonic() - clock
        needs = digests(study, step.needs)
        code = _run(step.command, study.root, environment, file)
    said = log.read_bytes()[begin:].decode("utf-8", errors="replace")
    if code:
        return code if code > 0 else 128 - code, "\n".join(said.rstrip().splitlines()[-_SHOWN_LINES:]), {}
    files = digests(study, step.files)
    if missing := [path for path, digest in files.items() if digest is None]:
        return 1, f"the command succeeded, but did not make {', '.join(missing)}", {}
    record = {
        "step": step.name,
        "command": list(step.command),
        "started": started,
        "seconds": round(time.monotonic() - clock, 1),
        "services_seconds": round(services_seconds, 1),
        "needs": needs,
        "files": files,
    }
    return 0, said, record


def _environment() -> dict[str, str]:
    """The environment of a step's command, without services: no downloads, no cluster, and this Python first."""
    passed_on = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{passed_on.get('PATH', os.defpath)}"
    return passed_on | {"PATH": path, "HF_HUB_OFFLINE": "1"}


class _OpenServices(ExitStack):
    """The services that are running; they stay for neighbouring steps that need the same ones."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._needed: Services | None = None
        self._variables: dict[str, str] = {}

    def variables_for(self, needed: Services | None) -> dict[str, str]:
        """Environment variables that lead to the services that a step needs; other services are stopped first."""
        if needed != self._needed:
            self.close()
            self._needed, self._variables = None, {}
            if needed is not None:
                model = str(self._root / needed.model)
                flags = ServiceFlags(model=model, engine=list(needed.engine), judge=list(needed.judge))
                with environment_variables(**_environment()):
                    self._variables = variables(self.enter_context(flags.started()))
                self._needed = needed
        return self._variables


def _run(command: tuple[str, ...], folder: Path, environment: Mapping[str, str], log: IO[bytes]) -> int:
    """Run a command in a process group of its own, so that Ctrl-C reaches it and its children once, from here."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        for number, seconds in _STOPS:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(seconds)
                break
        raise
