"""Work of every script around its one call of the library: flags, logging, errors and exit codes.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | finished with failures that a rerun retries, or a part of the system failed |
| 2 | a mistake of the user |
| 130 | interrupted |
"""

import asyncio
import contextlib
import errno
import gc
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Column, Table

from cobalt.stage.errors import INTERRUPTED, InfrastructureError, UserError
from cobalt.stage.run import Outcome
from cobalt.stage.tally import FIRST, Summary

Arguments = TypeVar("Arguments")

_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT)
"""Errors of the system that concern a path or a disk of the user; other errors of the system are bugs."""


def run_script(
    arguments_type: type[Arguments],
    function: Callable[[Arguments], int | Outcome | Coroutine[Any, Any, Outcome]],
    command_line: Sequence[str] | None = None,
    *,
    program: str | None = None,
    example: str | None = None,
    prepare: Callable[[Arguments], object] | None = None,
) -> None:
    """Parse the command line into `arguments_type`, call `function` with it, and exit with its exit code.

    The parameters are those of `parse_arguments` and `run_command`. The outcome of a stage is printed. Errors of the
    project, Ctrl-C, SIGTERM and a file that the system refuses end in one sentence on stderr. Any other exception is a
    bug and keeps its traceback.
    """
    # At the import of torch and transformers the collector would look at half a million objects again and again.
    gc.set_threshold(50_000, 10, 10)
    try:
        arguments = parse_arguments(arguments_type, command_line, program=program, example=example)
        # Colours and columns for people; whole lines for log files.
        handler = RichHandler(console=Console(stderr=True), show_path=False) if sys.stderr.isatty() else None
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler or logging.StreamHandler()])
        logging.getLogger("httpx").setLevel(logging.WARNING)
        with terminations_as_interrupts():
            if prepare is not None:
                prepare(arguments)
            result = function(arguments)
            result = asyncio.run(result) if isinstance(result, Coroutine) else result
            code = result if isinstance(result, int) else show(result)
    except (UserError, InfrastructureError) as error:
        sys.stderr.write(f"error: {error}\n")
        code = 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        code = 130
    except BrokenPipeError:  # who read the output has seen enough
        _drop_output()
        code = 1
    except OSError as error:
        if error.errno not in _NO_ACCESS:
            raise
        if error.filename is None:
            _drop_output()
        sys.stderr.write(f"error: cannot use {error.filename or 'the standard output'}: {error.strerror}\n")
        code = 2
    sys.exit(code)


def show(outcome: Outcome) -> int:
    """Print what a stage did (see `Outcome`), and return the exit code."""
    console = Console()
    if outcome.summary and outcome.title:
        console.print(_summary_table(outcome.summary, outcome.title))
        for reason, ids in outcome.summary.get(FIRST, {}).items():
            sys.stdout.write(f"{FIRST}, {reason}: {'; '.join(ids)}\n")
    for table in outcome.tables:
        console.print(table, soft_wrap=isinstance(table, str), markup=not isinstance(table, str))
    if outcome.failed:
        return 1
    if outcome.wrote:
        sys.stdout.write(f"wrote {outcome.wrote}\n")
    if outcome.next is not None:
        sys.stdout.write(f"next: {outcome.next}\n")
    return 0


def _summary_table(summary: Summary, title: str) -> Table:
    table = Table("of", "what", Column("count", justify="right"), title=title, title_justify="left")
    for group, counts in summary.items():
        if group == FIRST:
            continue
        for index, (name, count) in enumerate(counts.items()):
            table.add_row(group if index == 0 else "", name, f"{count:,}")
        table.add_section()
    return table


@contextlib.contextmanager
def terminations_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM, by which schedulers end a command, as Ctrl-C, and make sure that Ctrl-C is not ignored.

    A shell script starts background jobs with SIGINT ignored, and the commands that they start inherit that. While Ray
    starts, it has a SIGTERM handler of its own, which exits with the signal's number.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    if previous[signal.SIGINT] is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except SystemExit as error:
        if error.code == signal.SIGTERM:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse_arguments(
    arguments_type: type[Arguments],
    command_line: Sequence[str] | None = None,
    *,
    program: str | None = None,
    example: str | None = None,
) -> Arguments:
    """Parse a script's arguments, as `run_script` does; exits on a mistake and on `--help`.

    `arguments_type` is the script's dataclass of flags; for the other parameters see `cobalt.stage.entry.run_command`.
    """
    described = inspect.cleandoc(arguments_type.__doc__ or "")
    return tyro.cli(
        arguments_type,
        prog=program or _program_name(),
        description=f"{described}\n\nExample: {example}" if example else None,
        args=command_line,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
    )


def _program_name() -> str | None:
    """The command by which the user ran a module; None for a script, whose name argparse knows."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"
