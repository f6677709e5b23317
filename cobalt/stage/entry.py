"""The first lines of every command: import the command's module, then run it. Standard library only.

The module is imported here, and not at the top of a script, so that a missing package and Ctrl-C during the imports end
in one sentence.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
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
    except ModuleNotFoundError as error:
        package = (error.name or "cobalt").partition(".")[0]
        if package in ("cobalt", "cobalt_verl", "studies"):  # a defect, which keeps its traceback
            raise
        sys.stderr.write(
            f"error: the Python package {package!r} is missing in {sys.executable}: run scripts/setup.sh in the"
            " project's folder and activate its environment (source .venv/bin/activate)\n"
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        sys.exit(130)
