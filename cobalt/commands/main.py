"""The program `cobalt`: finds the command that is meant and runs it."""

import importlib.metadata
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from cobalt.commands.registry import COMMANDS, Command, overview
from cobalt.stage.entry import run_command
from cobalt.stage.errors import CobaltError


def main(command_line: Sequence[str] | None = None) -> None:
    """Run `cobalt` and exit with the command's exit code; 2 for a command that does not exist.

    `command_line` are the arguments without the program's name, by default those of this process.
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
        sys.stderr.write(f"error: there is no command {name!r}: give one of {', '.join(COMMANDS)}\n")
        sys.exit(2)
    command = COMMANDS[name]
    try:
        module = _module(command, rest)
    except CobaltError as error:  # --model can be two things
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    run_command(
        module,
        rest,
        program=f"cobalt {name}",
        example=f"cobalt {name} {command.example}",
        prepare=_use_running_services,
    )


def _name(words: Sequence[str]) -> str:
    """The name of the command: the first two words where they are one, or the first."""
    both = " ".join(words[:2]).replace("-", "_")
    return both if both in COMMANDS else words[0]


def _module(command: Command, words: Sequence[str]) -> str:
    """The command's module; the one for providers' models if one is named.

    Raises:
        UserError: the model can be one on this machine or a provider's.
    """
    if not command.api_module:
        return command.module
    kind, model = _value(words, "engine_kind"), _value(words, "model")
    if kind is None and (_value(words, "model_name") is not None or _value(words, "api_base") is not None):
        kind = "litellm"
    elif kind is None and model is not None:
        from cobalt.engine.opening import kind_of

        kind = kind_of(model)
    return command.api_module if kind == "litellm" else command.module


def _value(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag among the words of a command line; None: it is not among them."""
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") == flag:
            return value if equals else following
    return None


def _use_running_services(arguments: Any) -> None:
    """Use the running `cobalt serve`, as far as the settings of a stage say that it needs services."""
    from cobalt.judge.sandbox.cgroups import enter_delegated
    from cobalt.stage.serve_state import use_running_services

    if hasattr(arguments, "services") and arguments.services() != "none":
        enter_delegated()  # before there are processes that would have to move too
        use_running_services(arguments)
