"""`cobalt attach`: the environment variables of a running `cobalt serve`, printed or set for one command."""

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from cobalt.commands.serve import exports
from cobalt.stage.errors import UserError
from cobalt.stage.serve_state import choose_state


@dataclass(frozen=True)
class Arguments:
    """Run a command that uses the services of a running `cobalt serve`.

    Without a command, print the lines that set the variables in a shell: eval "$(cobalt attach)".
    """

    command: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[-- COMMAND ...]")] = ()
    """The command to run, after `--`."""
    pid: int | None = None
    """Process id of the `cobalt serve` to use, where several are running."""


def main(arguments: Arguments) -> int:
    """Print the lines, or become the command; returns the exit code."""
    state = choose_state(arguments.pid)
    if not arguments.command:
        sys.stdout.write(exports(state) + "\n")
        return 0
    try:
        os.execvpe(arguments.command[0], arguments.command, os.environ | state.variables)
    except OSError as error:
        raise UserError(f"cannot run {arguments.command[0]!r}: {error.strerror}") from None
