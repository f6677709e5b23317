"""What every script does around its one call of the library: flags, logging, errors and exit codes.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | finished with failures that a rerun retries, or a part of the system failed |
| 2 | a mistake of the user |
| 130 | interrupted |
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import tyro
from rich.console import Console
from rich.logging import RichHandler

from cobalt.errors import InfrastructureError, UserError

Arguments = TypeVar("Arguments")


def run_script(arguments_type: type[Arguments], function: Callable[[Arguments], int]) -> None:
    """Parse the command line into `arguments_type`, call `function` with it, and exit with its exit code.

    Flags accept both `_` and `-`. A `UserError` becomes one sentence on stderr and exit code 2, an
    `InfrastructureError` one sentence and exit code 1, and Ctrl-C exit code 130. Any other exception is a bug and
    keeps its traceback.
    """
    try:
        arguments = parse_arguments(arguments_type)
        # Colours and columns for people; whole lines for log files.
        handler = RichHandler(console=Console(stderr=True), show_path=False) if sys.stderr.isatty() else None
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler or logging.StreamHandler()])
        logging.getLogger("httpx").setLevel(logging.WARNING)
        code = function(arguments)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        code = 2
    except InfrastructureError as error:
        sys.stderr.write(f"error: {error}\n")
        code = 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: what is finished is kept; run the same command again to complete it\n")
        code = 130
    except BrokenPipeError:  # who read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's last flush succeeds
        code = 1
    sys.exit(code)


def parse_arguments(arguments_type: type[Arguments], command_line: Sequence[str] | None = None) -> Arguments:
    """Parse a script's arguments, as `run_script` does; exits on a mistake and on `--help`.

    Args:
        arguments_type: The script's dataclass of flags.
        command_line: The arguments without the program's name; None: those of this process.
    """
    return tyro.cli(
        arguments_type,
        prog=_program_name(),
        args=command_line,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _program_name() -> str | None:
    """The command by which the user ran a module; None for a script, whose name argparse knows."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return None if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"
