"""Why vLLM did not start: the first error of its engine process, which vLLM's own exception does not repeat.

vLLM's engine runs in a process of its own and writes its traceback to standard error, which it shares with the process
that started it. That process only learns that the engine has died ("see root cause above").
"""

import re
from pathlib import Path

_ERROR = re.compile(r"(?:^|[\s|])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)): (\S.*)$")
_SAYS_NOTHING = ("Engine core initialization failed", "WorkerProc initialization failed")
_LONGEST = 2**20


class ErrorOutput:
    """The standard error of this process from now on, if it goes to a file, as Ray's workers' does."""

    def __init__(self) -> None:
        self._path: Path | None = Path("/proc/self/fd/2").resolve()
        try:
            self._start = self._path.stat().st_size if self._path.is_file() else 0
        except OSError:
            self._path = None

    def first_error(self) -> str:
        """The message of the first exception written since; "" if there is none, or if it cannot be read."""
        if self._path is None or not self._path.is_file():
            return ""
        with self._path.open("rb") as handle:
            handle.seek(self._start)
            return first_error(handle.read(_LONGEST).decode(errors="replace"))


def first_error(said: str) -> str:
    """The exception that the first traceback in a log ends with, as "Type: message"; "" if there is none.

    Exceptions that only say that another process failed are passed over.
    """
    _, _, tracebacks = said.partition("Traceback (most recent call last):")
    for line in tracebacks.splitlines():
        found = _ERROR.search(line.rstrip())
        if found and not found[2].startswith(_SAYS_NOTHING):
            return f"{found[1].rpartition('.')[2]}: {found[2]}"
    return ""
