"""What a command says at its end: what it wrote, a score where there is one, and the command that comes next."""

import dataclasses
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cobalt.episode.record import decode_first_turns, decode_passing, read_trajectories
from cobalt.episode.trajectory import Turn
from cobalt.problems.problem import Problem
from cobalt.report.summary import summary_table
from cobalt.stage.manifest import recorded_arguments
from cobalt.stage.records import iterate_records
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


class CutOff:
    """The share of a result's responses that ended at a token limit."""

    def __init__(self, result: Path) -> None:
        """Read the limit of a result from its manifest; without one no limit is known."""
        self._limit: int | None = (recorded_arguments(result) or {}).get("generation", {}).get("max_tokens")
        self._ends: Counter[str] = Counter()

    def count(self, turns: Iterable[Turn]) -> None:
        """Count responses."""
        for turn in turns:
            if turn.finish_reason != "length":
                self._ends["other"] += 1
            elif self._limit is None or (turn.completion_tokens or 0) >= self._limit:
                self._ends["max_tokens"] += 1
            else:
                self._ends["context"] += 1

    def say(self) -> None:
        """Print a line for each limit that cut responses off, with what to do."""
        total = self._ends.total()
        for end, words in (
            (
                "max_tokens",
                f"were cut off by --max_tokens{f' {self._limit}' if self._limit else ''}, and a program that was not"
                " complete fails: give a larger --max_tokens, with another -o",
            ),
            (
                "context",
                "were cut off at the longest context of the model or engine (max_model_len): give one with a longer"
                " context, or fewer --turns, with another -o",
            ),
        ):
            number = self._ends[end]
            if number:
                sys.stdout.write(f"{_percent(number, total)} of the responses ({number} of {total}) {words}\n")


_OF_LATER_TURNS = (
    "prompts",
    "max_tokens",
    "temperature",
    "top_p",
    "api_base",
    "chat_template_thinking",
    "seed",
)
"""Flags of single turn that multi turn must have the same values of."""


def say_sampled(result: Path, arguments: Any) -> None:
    """The end of single-turn inference: the share of programs that pass all tests.

    Args:
        result: The result.
        arguments: The flags of the command; those that later turns need are part of the next command.
    """
    programs = passed = problems = 0
    cut = CutOff(result)
    for record in iterate_records(result, unfinished=True):
        rows = decode_passing(record, len(Problem.parse(record).tests))
        problems += 1
        cut.count(decode_first_turns(record) or ())
        programs += len(rows)
        passed += sum(map(all, rows))
    cut.say()
    repair = ["cobalt", "repair", "-i", str(result), "-o", str(result.with_name("multi_turn.jsonl"))]
    for flag in dataclasses.fields(arguments):
        value = getattr(arguments, flag.name)
        # Without --model the repair would be done by the running engine.
        if flag.name == "model_name" or (flag.name in _OF_LATER_TURNS and value != flag.default):
            repair += [f"--{'model' if flag.name == 'model_name' else flag.name}", str(value)]
    say(
        f"{result}: {problems} problems, {programs} programs, of which {_percent(passed, programs)} pass all tests",
        f"{shlex.join(repair)}, or for pass@k of these programs: cobalt evaluate -i"
        f" {quoted(result)} -o {quoted(result.with_name('evaluation.jsonl'))}",
    )


def say_repaired(result: Path) -> None:
    """The end of multi-turn inference: the share of first and last programs that pass all public tests."""
    problems = trajectories = first = last = 0
    cut = CutOff(result)
    for group in read_trajectories(result, unfinished=True):
        problems += 1
        for trajectory in group.trajectories:
            cut.count(trajectory.turns)
            rates = trajectory.public_pass_rates
            trajectories += 1
            first += rates[0] == 1
            last += rates[-1] == 1
    cut.say()
    evaluation = result.with_name("evaluation.jsonl")
    say(
        f"{result}: {problems} problems, {trajectories} trajectories; all public tests pass in"
        f" {_percent(first, trajectories)} of them at turn 0 and in {_percent(last, trajectories)} at the last turn",
        f"cobalt evaluate -i {quoted(result)} -o {quoted(evaluation)}",
    )


def say_evaluated(result: Path) -> None:
    """The end of an evaluation. A run is best named by its folder, whose name the tables then have."""
    run = result.parent if result.name == "evaluation.jsonl" and result.parent.name else result
    say(
        f"{result}, and its figures in {result.with_suffix('.metrics.json')}",
        f"cobalt view {quoted(run)} -o {quoted(result.with_name('view.html'))}, or to compare runs:"
        f" cobalt report {quoted(run)} OTHER -o report",
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"
