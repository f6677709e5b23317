"""Run a study: each step that is not done, in order, with the services that it needs.

Services are started once for neighbouring steps that need the same ones. A step's output goes to its log in the study's
folder; when the step succeeds, a line is added to `steps.jsonl` there. The first failure ends the study.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cobalt.serving.services import services_process
from cobalt.stage.cli import terminations_as_interrupts
from cobalt.stage.errors import InfrastructureError
from cobalt.stage.records import RecordFile
from studies.plan import Services, Step, Study, check_given, digests, is_done, open_study, step_records

logger = logging.getLogger(__name__)

_SHOWN_LINES = 20
"""How many lines of a failed step's log are shown."""

_OWN_VARIABLES = ("RAY_ADDRESS",)
"""Variables of the user's environment that a step's command must not see, because the plan decides their values."""


def run_study(study: Study, show: Callable[[str], object]) -> int:
    """Run every step that is not done.

    Args:
        study: The study.
        show: Called with the output of each step that is `shown`.

    Returns:
        0, or the exit code of the step that failed (128 + N when signal N ended it).

    Raises:
        UserError: what another study makes is missing, or the folder cannot be written, is in use, or was begun with
            other arguments.
        KeyboardInterrupt: the study was stopped; the step that was running is stopped too.
    """
    check_given(study)
    with (
        terminations_as_interrupts(),
        RecordFile(study.record_file) as output,
        _Runner(study, output, show) as runner,
    ):
        open_study(study)
        for step in study.steps:
            code = runner.take_turn(step) or runner.join_background(step)
            if code:
                return code
        runner.say(study.closing)
    return 0


_STOPS = ((signal.SIGINT, 60.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""How a step is stopped: signals, each with the seconds that it may take until the next one is sent."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A step that was started; `end` gives its exit code and the time at which it ended."""

    step: Step
    process: "subprocess.Popen[bytes]"
    end: "Future[tuple[int, float]]"
    needs: dict[str, str | None]
    log_begin: int
    started: str
    clock: float
    services_seconds: float


class _Runner:
    """The state of a running study: its records, open services and steps in the background."""

    def __init__(self, study: Study, output: RecordFile, show: Callable[[str], object]) -> None:
        self._study = study
        self._output = output
        self._show = show
        self._records = step_records(study)
        self._last_id = max((record["id"] for record in self._records.values()), default=0)
        self._clock = time.monotonic()
        self._running: list[_Running] = []
        self._waiting = ThreadPoolExecutor()
        self._services: Services | None = None
        self._services_environment: dict[str, str] = {}
        self._services_stack = ExitStack()

    def __enter__(self) -> "_Runner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the steps that still run; each keeps what it has finished. A step that does not end is killed."""
        for number, seconds in _STOPS:
            ends = [running.end for running in self._running if not running.end.done()]
            for running in self._running:
                if not running.end.done():
                    with suppress(ProcessLookupError):
                        os.killpg(running.process.pid, number)
            wait(ends, timeout=seconds)
        self._waiting.shutdown()
        self._services_stack.close()

    def say(self, message: str) -> None:
        """Report progress, with the time since the study was started."""
        minutes, seconds = divmod(int(time.monotonic() - self._clock), 60)
        logger.info("%s, %d:%02d min: %s", self._study.name, minutes, seconds, message)

    def take_turn(self, step: Step) -> int:
        """Run a step, or start it in the background, unless it is done; returns its exit code, 0 in the background."""
        if is_done(self._study, step, self._records.get(step.name)):
            self.say(f"{step.name} is done")
            return 0
        self.say(f"{step.name}: {step.purpose} Log: {self._shown_path(step)}")
        try:
            running = self._start(step)
        except InfrastructureError as error:
            said = self._study.log_file(step).read_text(encoding="utf-8", errors="replace")
            return self._fail(step, 1, f"{_last_lines(said)}\n{error}")
        return 0 if step.during else self._finish(running)

    def join_background(self, after: Step) -> int:
        """Wait for the background steps that end with `after`; returns the first exit code that is not 0."""
        for running in [running for running in self._running if running.step.during == after.name]:
            code = self._finish(running)
            if code:
                return code
        return 0

    def _start(self, step: Step) -> _Running:
        """Start a step's command, and the services that it needs.

        Raises:
            InfrastructureError: the services do not start.
        """
        log = self._study.log_file(step)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            begin = file.tell()
            clock, started = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            command, environment = list(step.command), self._environment()
            if step.during and step.services is not None:
                # Services of its own, which the steps in the foreground do not wait for.
                command = [sys.executable, "-m", "cobalt.services", *step.services.flags, "--", *command]
            elif not step.during:
                environment |= self._services_for(step, file.fileno())
            services_seconds = time.monotonic() - clock
            needs = digests(self._study, step.needs)
            # A process group of its own, so that Ctrl-C reaches it and its children once, from here.
            process = subprocess.Popen(
                command,
                cwd=self._study.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        running = _Running(
            step, process, self._waiting.submit(_wait, process), needs, begin, started, clock, services_seconds
        )
        self._running.append(running)
        return running

    def _services_for(self, step: Step, log: int) -> dict[str, str]:
        """Environment variables that lead to the services of a foreground step; other services are stopped first."""
        if step.services != self._services:
            self._services_stack.close()
            self._services, self._services_environment = None, {}
            if step.services is not None:
                held = services_process(step.services.flags, log, environment=self._environment(), cwd=self._study.root)
                self._services_environment = self._services_stack.enter_context(held)
                self._services = step.services
        return self._services_environment

    def _environment(self) -> dict[str, str]:
        """The environment of a step's command, without services: no downloads, and this Python first."""
        kept = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        return kept | {"PATH": path, "HF_HUB_OFFLINE": "1"}

    def _finish(self, running: _Running) -> int:
        """Wait for a step and record it; returns its exit code."""
        step = running.step
        code, end = running.end.result()
        self._running.remove(running)
        said = self._said(running)
        if code:
            return self._fail(step, code if code > 0 else 128 - code, _last_lines(said))
        files = digests(self._study, step.files)
        missing = [path for path, digest in files.items() if digest is None]
        if missing:
            return self._fail(step, 1, f"the command succeeded, but did not make {', '.join(missing)}")
        if step.shown:
            self._show(said)
        self._last_id += 1
        record: dict[str, Any] = {
            "id": self._last_id,
            "step": step.name,
            "command": list(step.command),
            "started": running.started,
            "seconds": round(end - running.clock, 1),
            "services_seconds": round(running.services_seconds, 1),
            "needs": running.needs,
            "files": files,
        }
        self._output.append(record)
        self._records[step.name] = record
        return 0

    def _said(self, running: _Running) -> str:
        """The part of a step's log that its command has written in this run."""
        with self._study.log_file(running.step).open("rb") as file:
            file.seek(running.log_begin)
            return file.read().decode("utf-8", errors="replace")

    def _fail(self, step: Step, code: int, reason: str) -> int:
        logger.error(
            "%s\n%s: step %s failed with exit code %d; its log is %s; to go on from there, run: %s",
            reason,
            self._study.name,
            step.name,
            code,
            self._shown_path(step),
            self._study.command,
        )
        return code

    def _shown_path(self, step: Step) -> Path:
        log = self._study.log_file(step)
        return log.relative_to(self._study.root) if log.is_relative_to(self._study.root) else log


def _wait(process: "subprocess.Popen[bytes]") -> tuple[int, float]:
    return process.wait(), time.monotonic()


def _last_lines(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_SHOWN_LINES:])
