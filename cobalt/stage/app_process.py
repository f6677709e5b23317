"""An app in a child process (`python -m cobalt.serving.host`), which ends with this one, however that ends."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from cobalt.stage.errors import InfrastructureError, UserError, last_line

LOG_BYTES = 8 * 2**20
"""Size of a log from which it is rotated; one older file is kept."""

_MESSAGE = re.compile(r"\d{4}-\d\d-\d\d .* (WARNING|ERROR) ")  # of the app's log, and not why it ended
_MOST_ERRORS = 2**20  # bytes at the end of the standard error in which its last line is looked for


class AppProcess:
    """A child that serves an app, in a process group of its own: Ctrl-C in a terminal reaches this process first.

    Args:
        name: "judge" or "engine".
        asked: Request that `cobalt.serving.host` reads: the app's settings, and where it listens.
        errors: File for its standard error, open for reading; for `rotate_errors` one with a name, open for appending.
        environment: Its environment; None: that of this process.

    Attributes:
        ended: A descriptor that is readable when the child has ended.
    """

    def __init__(
        self,
        name: str,
        asked: Mapping[str, Any],
        errors: IO[bytes],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.errors = name, errors
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cobalt.serving.host", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            process_group=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.ended = os.pidfd_open(self._process.pid)
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and its errors say why
            self._input.write(json.dumps(dict(asked)).encode() + b"\n")
            self._input.flush()

    def url(self) -> str:
        """Wait until requests are answered, and return the app's URL.

        Raises:
            UserError: a setting is wrong, or the port is in use.
            InfrastructureError: the app did not start.
        """
        answer = json.loads(self._output.readline() or b"{}")
        if "url" in answer:
            return str(answer["url"])
        if answer.get("mistake"):
            raise UserError(answer["error"])
        cause = answer.get("error") or self.last_error() or f"exit code {self._process.wait()}"
        raise InfrastructureError(f"the {self.name} did not start: {cause}")

    def last_error(self) -> str:
        """The last line of its standard error."""
        begin = max(0, os.fstat(self.errors.fileno()).st_size - _MOST_ERRORS)
        said = os.pread(self.errors.fileno(), _MOST_ERRORS, begin)
        if not said and (older := Path(f"{self.errors.name}.1")).exists():  # it has just been rotated
            said = older.read_bytes()[-_MOST_ERRORS:]
        lines = said.decode(errors="replace").splitlines()
        return last_line("\n".join(line for line in lines if not _MESSAGE.match(line)))

    def rotate_errors(self) -> None:
        """Move its standard error to `FILE.1` if it has `LOG_BYTES` or more; the child goes on in the same file."""
        if os.fstat(self.errors.fileno()).st_size >= LOG_BYTES:
            with contextlib.suppress(OSError):  # the disk is full, or newer runs have removed the folder
                shutil.copyfile(self.errors.name, f"{self.errors.name}.1")
            self.errors.truncate(0)

    def ask_to_end(self) -> None:
        """Have the child end after the requests that it has; while it starts, without having started."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def end(self, seconds: float) -> None:
        """Have the child end, and kill it with its group after so many seconds."""
        self.ask_to_end()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            os.close(self.ended)
            self._output.close()
