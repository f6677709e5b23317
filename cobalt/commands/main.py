"""The program `cobalt`: finds the command that is meant and runs it."""

import difflib
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Any

from cobalt.commands.registry import COMMANDS, overview
from cobalt.stage.entry import run_command


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
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f"did you mean `cobalt {near[0]}`?" if near else f"give one of {', '.join(COMMANDS)}"
        sys.stderr.write(f"error: there is no command {name!r}: {meant}\n")
        sys.exit(2)
    command = COMMANDS[name]
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in rest if word.startswith("--")}
    of_provider = command.api_module and not flags.isdisjoint(("model_name", "api_base"))
    run_command(
        command.api_module if of_provider else command.module,
        rest,
        program=f"cobalt {name}",
        example=f"cobalt {name} {command.example}",
        prepare=_use_running_services,
    )


def _name(words: Sequence[str]) -> str:
    """The name of the command: the first two words where they are one, or the first."""
    both = " ".join(words[:2]).replace("-", "_")
    return both if both in COMMANDS else words[0]


def _use_running_services(arguments: Any) -> None:
    """Use the running `cobalt serve`, as far as the settings of a stage say that it needs services."""
    from cobalt.judge.sandbox.cgroups import enter_delegated
    from cobalt.stage.serve_state import use_running_services

    if not hasattr(arguments, "services") or (needed := arguments.services()) == "none":
        return
    enter_delegated()  # before there are processes that would have to move too
    use_running_services(
        needed,
        model=getattr(arguments, "model", None),
        judge_named=bool(arguments.judge_url),
        engine_named=bool(getattr(arguments, "engine_url", ())),
    )
