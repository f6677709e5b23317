"""The first lines of every command: import the command's module, then run it. Standard library only.

The module is imported here, and not at the top of a script, so that a missing package and Ctrl-C during the imports end
in one sentence.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, get_type_hints

from cobalt.stage.errors import INTERRUPTED


def run_command(
    module: str,
    command_line: Sequence[str] | None = None,
    *,
    program: str | None = None,
    example: str | None = None,
    prepare: Callable[[Any], object] | None = None,
) -> None:
    """Import a command's module and run it; exits with the command's exit code.

    Args:
        module: A module with the function `main` of its arguments, or a stage as `module:function`.
        command_line: Arguments without the program's name; None: those of this process.
        program: The program's name in `--help`; None: that of the running script.
        example: A command line that `--help` shows.
        prepare: Called with the settings of a stage before the work.
    """
    name, _, stage = module.partition(":")
    try:
        cli = importlib.import_module("cobalt.stage.cli")
        function = getattr(importlib.import_module(name), stage or "main")
        settings, *_ = get_type_hints(function).values()
        cli.run_script(settings, function, command_line, program=program, example=example, prepare=prepare)
    except (ModuleNotFoundError, KeyboardInterrupt) as error:
        _end(error)
        raise


def end_in_one_sentence() -> None:
    """Let a module that `python -m` runs end as `run_command` does at a missing package and at Ctrl-C."""

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _end(error)
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = end


def _end(error: BaseException) -> None:
    """Exit with one sentence at Ctrl-C and at a missing package, unless it is one of this project: that is a defect."""
    if isinstance(error, KeyboardInterrupt):
        sys.stderr.write(INTERRUPTED)
        sys.exit(130)
    package = (getattr(error, "name", None) or "cobalt").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package not in ("cobalt", "cobalt_verl", "studies"):
        sys.stderr.write(
            f"error: the Python package {package!r} is missing in {sys.executable}: run scripts/setup.sh in the"
            " project's folder and activate its environment (source .venv/bin/activate)\n"
        )
        sys.exit(2)
