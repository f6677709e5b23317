"""The program `cobalt`: finds the command that is meant and runs it."""

import difflib
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Any

from cobalt.commands.registry import COMMANDS, Command, overview
from cobalt.stage.entry import run_command

_MODEL_FLAGS = ("--model", "--model_name", "--model-name")


def main(command_line: Sequence[str] | None = None) -> None:
    """Run `cobalt` and exit with the command's exit code; 2 for a command that does not exist.

    Args:
        command_line: Arguments without the program's name; None: those of this process.
    """
    words = list(sys.argv[1:] if command_line is None else command_line)
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        sys.exit(0)
    name = _name(words)
    rest = words[len(name.split()) :]
    if name == "--version":
        sys.stdout.write(f"cobalt {importlib.metadata.version('cobalt')}\n")
        sys.exit(0)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f"did you mean `cobalt {near[0]}`?" if near else f"give one of {', '.join(COMMANDS)}"
        sys.stderr.write(f"error: there is no command {name!r}: {meant}\n")
        sys.exit(2)
    command = COMMANDS[name]
    run_command(
        _module(command, rest),
        rest,
        program=f"cobalt {name}",
        example=f"cobalt {name} {command.example}",
        prepare=_use_running_services if command.uses_services else None,
    )


def _name(words: Sequence[str]) -> str:
    """The name of the command: the first two words where they are one, or the first."""
    both = " ".join(words[:2]).replace("-", "_")
    return both if both in COMMANDS else words[0]


def _module(command: Command, words: Sequence[str]) -> str:
    """The command's module; the one for proprietary models if a model is named."""
    named = any(word.split("=")[0] in _MODEL_FLAGS for word in words)
    return command.api_module if command.api_module and named else command.module


def _use_running_services(arguments: Any) -> None:
    """Use the running `cobalt serve`, as far as the arguments of a command with `uses_services` need it."""
    from cobalt.stage.serve_state import use_running_services

    needed = arguments.services()
    if needed != "none":
        use_running_services(needed)
