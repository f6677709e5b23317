"""What a command says at its end: what it wrote, a score where there is one, and the command that comes next."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cobalt.report.summary import summary_table
from cobalt.stage.tally import FIRST

Summary = Mapping[str, Mapping[str, Any]]
"""What a data command counted: groups of counts by name; see also `cobalt.stage.tally`."""


def say(wrote: str, next_command: str | None = None) -> None:
    """Print the last lines of a command.

    Args:
        wrote: The files that it wrote, and a score.
        next_command: What to run next; None: nothing follows by itself.
    """
    sys.stdout.write(f"wrote {wrote}\n")
    if next_command is not None:
        sys.stdout.write(f"next: {next_command}\n")


def quoted(path: Path) -> str:
    """A path as a shell takes it."""
    return shlex.quote(str(path))


def say_summary(summary: Summary, title: str, wrote: str, next_command: str | None = None) -> None:
    """The end of a data command: the table of what it counted, the first ids left out, and its last lines (`say`)."""
    Console().print(summary_table({name: group for name, group in summary.items() if name != FIRST}, title=title))
    for reason, ids in summary.get(FIRST, {}).items():
        sys.stdout.write(f"{FIRST}, {reason}: {'; '.join(ids)}\n")
    say(wrote, next_command)


def say_problems(summary: Summary, data_set: str, problems: Path) -> None:
    """The end of a command that made a file of problems."""
    next_command = f"cobalt sample -i {quoted(problems)} -o single_turn.jsonl"
    say_summary(summary, f"{data_set}: {problems}", str(problems), next_command)


def say_groups(summary: Summary, source: str, folder: Path) -> None:
    """The end of a command that made groups of judged programs for offline training."""
    next_command = f"cobalt train offline_rl --data_dir {quoted(folder)} --model MODEL -o RUN"
    say_summary(summary, f"{source}: {folder}", str(folder), next_command)
