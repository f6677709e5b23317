"""Run a training command as a watched child process: its output into the log, its progress on one line, its hang found.

A run hangs when for the limit no process of it got on (`cobalt.training.heartbeat`), printed a line, or worked: took
time of a core, used a disk or a GPU (`cobalt.training.activity`). Silence alone is no sign, because a healthy step may
print nothing for an hour; nor is a warning that comes again and again a sign of life.

Processes that wait for each other in a busy loop look like work from outside, on a core as on a GPU. So a run is ended
as well when it has neither got on nor printed anything for `BUSY_LIMITS` times the limit, however busy it is. Work on
other nodes cannot be seen: with processes there, this longer limit alone holds.
"""

import contextlib
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from cobalt.stage.errors import InfrastructureError
from cobalt.training.activity import Activity
from cobalt.training.heartbeat import Heartbeat, heartbeat_folder
from cobalt.training.progress import phase_reporter

logger = logging.getLogger(__name__)

BUSY_LIMITS = 4
"""See the module."""

_LOOKS = 20
"""How often processors are looked at within the limit, once the run is quiet; at most once a minute."""

_LATE = 5
"""Looks by which a sign may come later than the lines of its phase: it is written, and read, once a second."""

_END_SECONDS = 15
"""How long the command may take to end after it was asked to."""

_ESCAPES = re.compile(rb"\x1b\[[0-9;]*m")

_WARNING = re.compile(r"\bWARN(ING)?\b|Warning\b|\[W\d{4}\b")
"""What warnings of Python, Ray, veRL, vLLM and torch have in them."""


def watch(
    command: list[str],
    environment: dict[str, str],
    output: Path,
    hang_limit: float,
    report: Callable[[], None] = lambda: None,
) -> int:
    """Run a command with its output in the run's `train.log`, and end it when it hangs.

    Args:
        command: Program and arguments.
        environment: Its whole environment (`cobalt.training.configuration.process_environment`).
        output: The run's folder. The log is appended to, without colours, with a line on the run's progress every half
            minute, which is shown to the user as well.
        hang_limit: Seconds without output, progress and work after which it is ended; see the module.
        report: Called once a second, and at the end.

    Returns:
        Its exit code; 128 + N when signal N ended it. If the code is not 0, the last error of the log is reported.

    Raises:
        InfrastructureError: it hung; the message says where, and has the last error that it printed in that phase.
    """
    log = output / "train.log"
    heartbeat = Heartbeat(heartbeat_folder(output))
    with log.open("ab") as file, phase_reporter(heartbeat, lambda line: _append(file.fileno(), line)) as show:
        begin = os.fstat(file.fileno()).st_size
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
        )
        hang = _Hang(heartbeat, hang_limit)

        def copy() -> None:
            assert child.stdout is not None
            for line in child.stdout:
                plain = _ESCAPES.sub(b"", line)
                if not _WARNING.search(plain.decode("utf-8", "replace")):
                    hang.heard()
                file.write(plain)
                file.flush()

        reader = threading.Thread(target=copy, daemon=True)
        reader.start()
        phase, begin_of_phase = heartbeat.state.where, begin
        sizes = deque([begin], maxlen=_LATE)
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.wait(timeout=min(1.0, hang_limit / _LOOKS))
                    break
                report()
                reason = hang.reason()
                show()
                if heartbeat.state.where != phase:
                    phase, begin_of_phase = heartbeat.state.where, sizes[0]
                sizes.append(os.fstat(file.fileno()).st_size)
                if reason:
                    raise InfrastructureError(
                        f"training hung ({phase}{_so_far(heartbeat)}) and was ended: {reason}"
                        f"{_last_error(log, begin_of_phase)}; the log is {log}"
                    )
        finally:
            _end(child)
            reader.join(timeout=_END_SECONDS)
            report()
        if code:
            logger.error("training ended with exit code %d%s; the log is %s", code, _last_error(log, begin), log)
        return code if code >= 0 else 128 - code


class _Hang:
    """Finds out whether a run hangs."""

    def __init__(self, heartbeat: Heartbeat, limit: float) -> None:
        self._heartbeat = heartbeat
        self._limit = limit
        self._activity = Activity()
        self._progress = self._work = self._looked = time.monotonic()

    def heard(self) -> None:
        """Note a line of output."""
        self._progress = time.monotonic()

    def reason(self) -> str:
        """Why the run counts as hung, in words; "" if it does not. To be called again and again."""
        now = time.monotonic()
        if self._heartbeat.look():
            self._progress = now
        quiet = now - self._progress
        if quiet > self._limit / _LOOKS and now - self._looked > min(60.0, self._limit / _LOOKS):
            self._looked = now
            if self._heartbeat.elsewhere or self._activity.busy(self._heartbeat.pids, self._heartbeat.gpus):
                self._work = now
        if quiet > BUSY_LIMITS * self._limit:
            return f"no output and no progress for {quiet:.0f} s, though its processors may have been busy"
        if min(quiet, now - self._work) > self._limit:
            return f"no output, no progress and no work of its processors for {self._limit:g} s"
        return ""


def _so_far(heartbeat: Heartbeat) -> str:
    return f", after {heartbeat.state.done}" if heartbeat.state.done else ""


def _append(descriptor: int, line: str) -> None:
    """Add a line to the log, whole, while another thread writes there; a disk that refuses is no reason to stop."""
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{line}\n".encode())


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the driver and its process group: by SIGINT, so that it can leave Ray in order, then by SIGKILL."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal.SIGINT)
        child.wait(timeout=_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_error(log: Path, begin: int) -> str:
    """The last line of the log from byte `begin` on that names an error, as the end of a sentence."""
    lines = log.read_bytes()[begin:].decode("utf-8", "replace").splitlines()
    # torchrun reports that a rank failed after the rank itself has said why. Warnings quote errors that do no harm.
    named = [
        line.strip()
        for line in lines
        if re.search(r"\b(?!ChildFailed)\w*(Error|Exception)\b", line) and not _WARNING.search(line)
    ]
    return f"; its last error: {named[-1]}" if named else ""
