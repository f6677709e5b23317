"""A study: named steps in an order, the files that they need and make, and which of them are done.

A step is done when the record of its last successful run names the same command, and the files that it needs and makes
have the contents that they had then. So a study that was stopped continues where it stopped, and a step whose input has
changed, or whose result was removed, runs again. The commands themselves resume and refuse other settings
(`cobalt.stage.manifest`).

`run_study` runs each step that is not done, in order, with the services that it needs, which are started once for
neighbouring steps that need the same ones. A step's output goes to its log in the study's folder; when the step
succeeds, a line is added to `steps.jsonl` there. The first failure ends the study.
"""

import hashlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from cobalt.serving.services import ServiceFlags, variables
from cobalt.stage.cli import terminations_as_interrupts
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import CobaltError, UserError
from cobalt.stage.manifest import file_digest, open_manifest
from cobalt.stage.records import RecordFile, read_records
from cobalt.training.configuration import TrainingSettings

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: the folder that commands run in."""

STEPS_FILE = "steps.jsonl"
"""In a study's folder: a line for each successful run of a step."""

_STOPS = ((signal.SIGINT, 60.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""Signals that stop a step, each with the seconds that it may take until the next one is sent."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a study.

    Attributes:
        name: Unique in the study; also the name of the step's log.
        purpose: Purpose of the step, in a sentence.
        command: Program and arguments; `python` is the one that runs the study.
        files: Files and folders that the step makes.
        needs: Files and folders that it reads, made by earlier steps.
        services: The services that its command needs; None: none.
        shown: Whether the command's output is shown on the terminal, too.
        training: Settings of the command's training, if it trains by GRPO, so that a dry run can check it.
    """

    name: str
    purpose: str
    command: tuple[str, ...]
    files: tuple[Path, ...]
    needs: tuple[Path, ...] = ()
    services: ServiceFlags | None = None
    shown: bool = False
    training: TrainingSettings | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """A study: its folder and its plan.

    Attributes:
        name: For messages.
        folder: Folder of results, logs and the record of the steps.
        arguments: Arguments that decide the results, JSON-able; a folder begun with other arguments is refused.
        steps: The plan, in the order in which the steps are started.
        closing: Advice on what to look at when the study is complete.
        root: The folder that commands run in. Relative paths of the study are relative to it.
        inputs: Files and folders that must be there before the study begins.
    """

    name: str
    folder: Path
    arguments: Mapping[str, Any]
    steps: tuple[Step, ...]
    closing: str
    root: Path = ROOT
    inputs: tuple[Path, ...] = ()

    @property
    def record_file(self) -> Path:
        """JSONL with a line for each successful run of a step: the step, its command, start, seconds and digests."""
        return self.root / self.folder / STEPS_FILE


def step_records(study: Study) -> dict[str, dict[str, Any]]:
    """The record of the last successful run of each step, by the step's name; UserError if the file is wrong."""
    path = study.record_file
    return {record["step"]: record for record in read_records(path, unfinished=True)} if path.exists() else {}


def is_done(study: Study, step: Step, record: Mapping[str, Any] | None) -> bool:
    """Whether a step need not run, by the record of its last successful run."""
    if record is None or record["command"] != list(step.command):
        return False
    return bool(record["needs"] == digests(study, step.needs) and record["files"] == digests(study, step.files))


def digests(study: Study, paths: Sequence[Path]) -> dict[str, str | None]:
    """The digest of each file or folder; None where there is nothing."""
    return {str(path): _digest(study.root / path) for path in paths}


def _digest(path: Path) -> str | None:
    """SHA-256 of a file, or of the names and contents of a folder's files."""
    if not path.is_dir():
        return file_digest(path) if path.exists() else None
    lines = [f"{file.relative_to(path)} {file_digest(file)}\n" for file in sorted(path.rglob("*")) if file.is_file()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def run_study(study: Study, show: Callable[[str], object]) -> int:
    """Run every step that is not done; `show` is called with the output of each step that is `shown`.

    Returns:
        0, or the exit code of the step that failed (128 + N when signal N ended it).

    Raises:
        UserError: an input is missing, or the folder cannot be written, is in use, or was begun with other arguments.
        KeyboardInterrupt: the study was stopped; the step that was running is stopped too.
    """
    for path in study.inputs:
        if not (study.root / path).exists():
            raise UserError(f"{study.name} needs {path}, which is not there")
    clock = time.monotonic()

    def say(message: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - clock), 60)
        logger.info("%s, %d:%02d min: %s", study.name, minutes, seconds, message)

    with terminations_as_interrupts(), RecordFile(study.record_file) as output, _OpenServices(study.root) as services:
        open_manifest(study.record_file, {"study": study.name, **study.arguments})
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
    try:
        environment = _environment() | services.variables_for(step.services)
    except CobaltError as error:
        return 1, str(error), {}
    services_seconds, needs = time.monotonic() - clock, digests(study, step.needs)
    with log.open("ab") as file:
        begin = file.tell()
        code = _run(step.command, study.root, environment, file)
    said = log.read_bytes()[begin:].decode("utf-8", errors="replace")
    if code:
        return code if code > 0 else 128 - code, "\n".join(said.rstrip().splitlines()[-20:]), {}
    files = digests(study, step.files)
    if missing := [path for path, digest in files.items() if digest is None]:
        return 1, f"the command succeeded, but did not make {', '.join(missing)}", {}
    timed = {"seconds": round(time.monotonic() - clock, 1), "services_seconds": round(services_seconds, 1)}
    record = {"step": step.name, "command": list(step.command), "started": started, "needs": needs, "files": files}
    return 0, said, record | timed


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
        self._open: tuple[ServiceFlags | None, dict[str, str]] = (None, {})

    def variables_for(self, needed: ServiceFlags | None) -> dict[str, str]:
        """Environment variables that lead to the services that a step needs; other services are stopped first."""
        if needed != self._open[0]:
            self.close()
            self._open = (None, {})
            if needed is not None:
                flags = replace(needed, model=str(self._root / str(needed.model)))
                with environment_variables(**_environment()):
                    self._open = (needed, variables(self.enter_context(flags.started())))
        return self._open[1]


def _run(command: tuple[str, ...], folder: Path, environment: Mapping[str, str], log: IO[bytes]) -> int:
    """Run a command in a process group of its own, so that Ctrl-C reaches it and its children once, from here."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
    interrupts: list[int] = []  # those that arrive before there is a process to end
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        with ExitStack() as starting:
            starting.callback(signal.signal, signal.SIGINT, handler)
            process = subprocess.Popen(command, cwd=folder, env=environment, process_group=0, **streams)
        if interrupts:
            raise KeyboardInterrupt
        return process.wait()
    except KeyboardInterrupt:
        for number, seconds in _STOPS:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(seconds)
                break
        raise
