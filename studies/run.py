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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from cobalt.serving.children import variables
from cobalt.serving.services import ServiceFlags
from cobalt.stage.cli import terminations_as_interrupts
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import CobaltError
from cobalt.stage.records import RecordFile
from studies.plan import Services, Step, Study, check_inputs, digests, is_done, open_study, step_records

logger = logging.getLogger(__name__)

_SHOWN_LINES = 20
"""How many lines of a failed step's log are shown."""

_OWN_VARIABLES = ("RAY_ADDRESS",)
"""Variables of the user's environment that a step's command must not see, because the plan decides their values."""

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
    check_inputs(study)
    with terminations_as_interrupts(), RecordFile(study.record_file) as output, ExitStack() as services:
        open_study(study)
        runner = _Runner(study, output, show, services)
        for step in study.steps:
            code = runner.take_turn(step)
            if code:
                return code
        runner.say(study.closing)
    return 0


class _Runner:
    """The state of a running study: its records, and the services that are open."""

    def __init__(self, study: Study, output: RecordFile, show: Callable[[str], object], services: ExitStack) -> None:
        self._study = study
        self._output = output
        self._show = show
        self._records = step_records(study)
        self._last_id = max((record["id"] for record in self._records.values()), default=0)
        self._clock = time.monotonic()
        self._services: Services | None = None
        self._services_environment: dict[str, str] = {}
        self._services_stack = services

    def say(self, message: str) -> None:
        """Report progress, with the time since the study was started."""
        minutes, seconds = divmod(int(time.monotonic() - self._clock), 60)
        logger.info("%s, %d:%02d min: %s", self._study.name, minutes, seconds, message)

    def take_turn(self, step: Step) -> int:
        """Run a step, unless it is done, and record it; returns its exit code."""
        if is_done(self._study, step, self._records.get(step.name)):
            self.say(f"{step.name} is done")
            return 0
        self.say(f"{step.name}: {step.purpose} Log: {self._shown_path(step)}\n  {shlex.join(step.command)}")
        log = self._study.log_file(step)
        log.parent.mkdir(parents=True, exist_ok=True)
        clock, started = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with log.open("ab") as file:
            begin = file.tell()
            try:
                environment = self._environment() | self._services_for(step)
            except CobaltError as error:
                return self._fail(step, 1, str(error))
            services_seconds = time.monotonic() - clock
            needs = digests(self._study, step.needs)
            code = _run(step.command, self._study.root, environment, file)
        seconds = time.monotonic() - clock
        if code:
            last = _said(log, begin).rstrip().splitlines()[-_SHOWN_LINES:]
            return self._fail(step, code if code > 0 else 128 - code, "\n".join(last))
        files = digests(self._study, step.files)
        missing = [path for path, digest in files.items() if digest is None]
        if missing:
            return self._fail(step, 1, f"the command succeeded, but did not make {', '.join(missing)}")
        if step.shown:
            self._show(_said(log, begin))
        self._last_id += 1
        record: dict[str, Any] = {
            "id": self._last_id,
            "step": step.name,
            "command": list(step.command),
            "started": started,
            "seconds": round(seconds, 1),
            "services_seconds": round(services_seconds, 1),
            "needs": needs,
            "files": files,
        }
        self._output.append(record)
        self._records[step.name] = record
        return 0

    def _services_for(self, step: Step) -> dict[str, str]:
        """Environment variables that lead to the services of a step; other services are stopped first."""
        if step.services != self._services:
            self._services_stack.close()
            self._services, self._services_environment = None, {}
            if step.services is not None:
                flags = ServiceFlags(
                    model=str(self._study.root / step.services.model),
                    engine=list(step.services.engine),
                    judge=list(step.services.judge),
                )
                with environment_variables(**self._environment()):
                    self._services_environment = variables(self._services_stack.enter_context(flags.started()))
                self._services = step.services
        return self._services_environment

    def _environment(self) -> dict[str, str]:
        """The environment of a step's command, without services: no downloads, and this Python first."""
        passed_on = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
        path = f"{Path(sys.executable).parent}{os.pathsep}{passed_on.get('PATH', os.defpath)}"
        return passed_on | {"PATH": path, "HF_HUB_OFFLINE": "1"}

    def _fail(self, step: Step, code: int, reason: str) -> int:
        logger.error(
            "%s\n%s: step %s failed with exit code %d; its log is %s; to go on from there, run: %s",
            *(reason, self._study.name, step.name, code, self._shown_path(step), self._study.command),
        )
        return code

    def _shown_path(self, step: Step) -> Path:
        log = self._study.log_file(step)
        return log.relative_to(self._study.root) if log.is_relative_to(self._study.root) else log


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: IO[bytes]) -> int:
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


def _said(log: Path, begin: int) -> str:
    """The part of a step's log from an offset on."""
    return log.read_bytes()[begin:].decode("utf-8", errors="replace")
