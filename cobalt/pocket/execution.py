"""Run pocket programs in this process, fast: thousands a second.

Only for programs that this package has put together itself, which are harmless and terminate. Programs that a model
wrote go to the judge (`cobalt.judge`), which isolates them.
"""

import contextlib
import functools
import io
import linecache
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType

FILE_NAME = "main.py"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Standard output of one run, and the traceback of a crash (as for a file `main.py`) or None."""

    output: str
    stderr: str | None = None


@functools.lru_cache(maxsize=20_000)
def _compiled(program: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged programs are odd on purpose
        return compile(program, FILE_NAME, "exec")


def run_program(program: str, stdin: str) -> Outcome:
    """Run `program` on `stdin`."""
    written = io.StringIO()
    names = {"input": _reader(iter(stdin.split("\n"))), "print": functools.partial(print, file=written)}
    try:
        exec(_compiled(program), names)
    except SystemExit:
        pass
    except Exception as error:  # noqa: BLE001  # whatever the program raises is its result
        return Outcome(written.getvalue(), _traceback(program, error))
    return Outcome(written.getvalue())


def _reader(lines: Iterator[str]) -> Callable[[], str]:
    def read() -> str:
        for line in lines:
            return line
        raise EOFError("EOF when reading a line")

    return read


def _traceback(program: str, error: Exception) -> str:
    """The interpreter's report of `error`, without the frames of this module."""
    lines = [f"{line}\n" for line in program.split("\n")]
    linecache.cache[FILE_NAME] = (len(program), None, lines, FILE_NAME)
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if frame.filename == FILE_NAME]
    # A syntax error has no frame, and the interpreter's report then has no heading for frames either.
    report.stack = traceback.StackSummary(frames) if frames else None  # type: ignore[assignment]
    *above, _ = "".join(report.format()).splitlines()
    # Python 3.11 adds what a misspelt name may have meant in its own report only, not in `traceback`'s.
    with contextlib.redirect_stderr(io.StringIO()) as own:
        sys.__excepthook__(type(error), error, error.__traceback__)
    return "\n".join([*above, own.getvalue().splitlines()[-1]]) + "\n"
