"""Evaluated multi-turn records as trajectories: ours, and the ones the authors released.

Ours have known axes: `all_pass_rates` [sample][turn] and `public_pass_rates` [turn][sample]. In other files the axes
are told from the lengths, and a record with as many turns as samples, where they cannot be told, is refused. Rates
become counts of tests passed, which also shows whether tests and rates belong together. One record is held at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.conversation import Message
from cobalt.errors import UserError
from cobalt.problem import Problem
from cobalt.records import iterate_records

_ROLES = ("system", "user", "assistant")
_TOLERANCE = 1e-6  # of a test; rates were written as decimals


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One conversation and how good each of its programs is.

    Attributes:
        sample: Its place among the problem's conversations.
        messages: The conversation, ending with the feedback on its last program.
        head: How many messages come before the first program.
        responses: What the model wrote at each turn, thinking included where the file has it.
        public_passed: Public tests passed at each turn.
        passed: Tests passed at each turn, public and hidden.
    """

    sample: int
    messages: list[Message]
    head: int
    responses: list[str]
    public_passed: list[int]
    passed: list[int]


@dataclass(frozen=True, slots=True)
class ProblemTrajectories:
    """A problem and its trajectories, which all have the same number of turns.

    Attributes:
        problem: The problem.
        trajectories: By sample.
        public_tests: How many public tests there are.
        tests: How many public and hidden tests there are.
    """

    problem: Problem
    trajectories: tuple[Trajectory, ...]
    public_tests: int
    tests: int


def read_trajectories(path: Path, turns: int) -> Iterator[ProblemTrajectories]:
    """Read the evaluated records of a multi-turn run, one at a time.

    Args:
        path: Result of eval_multi_turn.py, or the authors' file of the same fields.
        turns: How many turns of each trajectory are read; later ones are left out.

    Raises:
        UserError: a record is malformed or not evaluated, or has other numbers of turns than the ones before.
    """
    recorded: int | None = None
    for record in iterate_records(path):
        try:
            group, found = _parse(record, turns)
        except UserError as error:
            raise UserError(f"{path}: record {record['id']!r}: {error}") from None
        recorded = found if recorded is None else recorded
        if found != recorded:
            raise UserError(
                f"{path}: record {record['id']!r} has {found} turns where another has {recorded}:"
                " process runs with the same number of turns together"
            )
        yield group


def _parse(record: Mapping[str, Any], turns: int) -> tuple[ProblemTrajectories, int]:
    """A record's trajectories, and how many turns they have in the file."""
    if "conversations" not in record:
        raise UserError("it has no 'conversations': run a multi-turn script first")
    if not record.get("all_pass_rates"):
        raise UserError("it has no 'all_pass_rates': run eval_multi_turn.py first")
    if not record.get("public_pass_rates"):
        raise UserError("it has no 'public_pass_rates': run a multi-turn script first")
    problem = Problem.parse(record)
    if not len(problem.public_tests):
        raise UserError("it has no public tests (field 'public_test_cases'), and its public pass rates are of some")
    conversations = _conversations(record["conversations"])
    samples = len(conversations)
    lengths = {sum(message["role"] == "assistant" for message in conversation) for conversation in conversations}
    if len(lengths) != 1:
        raise UserError(f"its conversations have different numbers of turns ({sorted(lengths)})")
    [found] = lengths
    if found < turns:
        raise UserError(f"it has {found} turns, and {turns} were asked for: give --num_turns {found}, or collect more")
    # Only this project's evaluation writes verdicts, and only its multi-turn runs finish reasons.
    hidden_axes = True if "hidden_verdicts" in record else None
    public_axes = False if "finish_reasons" in record else None
    hidden = _rates(record, "all_pass_rates", samples, found, sample_first=hidden_axes)
    public = _rates(record, "public_pass_rates", samples, found, sample_first=public_axes)
    raw = _raw_responses(record, samples, found, sample_first=public_axes)
    n_public, n_hidden = len(problem.public_tests), len(problem.hidden_tests)
    trajectories = []
    for sample, conversation in enumerate(conversations):
        head = _head(conversation, found)
        public_passed = [_count("public_pass_rates", rate, n_public) for rate in public[sample][:turns]]
        hidden_passed = [_count("all_pass_rates", rate, n_hidden) for rate in hidden[sample][:turns]]
        trajectories.append(
            Trajectory(
                sample=sample,
                messages=conversation[: head + 2 * turns],
                head=head,
                responses=raw[sample][:turns]
                if raw is not None
                else [conversation[head + 2 * turn]["content"] for turn in range(turns)],
                public_passed=public_passed,
                passed=[sum(counts) for counts in zip(public_passed, hidden_passed, strict=True)],
            )
        )
    return ProblemTrajectories(problem, tuple(trajectories), n_public, n_public + n_hidden), found


def _conversations(value: object) -> list[list[Message]]:
    if not isinstance(value, list) or not value or not all(isinstance(item, list) and item for item in value):
        raise UserError("field 'conversations' must be a list of conversations")
    for conversation in value:
        for message in conversation:
            if (
                not isinstance(message, dict)
                or message.get("role") not in _ROLES
                or not isinstance(message.get("content"), str)
            ):
                raise UserError("field 'conversations' holds a message without a known role and a text")
    return value


def _head(conversation: Sequence[Message], turns: int) -> int:
    """How many messages come before the first program; programs and feedback must alternate from there."""
    roles = [message["role"] for message in conversation]
    head = len(roles) - 2 * turns
    if roles not in (["user"] + ["assistant", "user"] * turns, ["system", "user"] + ["assistant", "user"] * turns):
        raise UserError(
            f"a conversation is not a question followed by programs, each with its feedback (roles: {', '.join(roles)})"
        )
    return head


def _rates(
    record: Mapping[str, Any], field: str, samples: int, turns: int, *, sample_first: bool | None
) -> list[list[float]]:
    rows = _by_sample(record, field, samples, turns, sample_first=sample_first)
    if not all(isinstance(rate, int | float) and 0 <= rate <= 1 for row in rows for rate in row):
        raise UserError(f"field {field!r} holds something that is no rate between 0 and 1")
    return rows


def _by_sample(
    record: Mapping[str, Any], field: str, samples: int, turns: int, *, sample_first: bool | None
) -> list[list[Any]]:
    """A field's values as [sample][turn]; `sample_first` None: the axes are told from the lengths."""
    rows = record[field]
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise UserError(f"field {field!r} must be a list of lists")
    shapes = {(len(rows), len(row)) for row in rows}
    by_sample, by_turn = {(samples, turns)}, {(turns, samples)}
    if sample_first is None:
        if samples == turns and samples > 1 and shapes == by_sample:
            raise UserError(
                f"it has as many turns as samples ({turns}), so the axes of {field!r} cannot be told:"
                " run the programs again with run_multi_turn_vllm.py --replay_file, and eval_multi_turn.py"
            )
        sample_first = shapes == by_sample
    if shapes != (by_sample if sample_first else by_turn):
        raise UserError(
            f"field {field!r} has the wrong shape: its conversations are {samples} samples of {turns} turns"
        )
    return [list(row) for row in rows] if sample_first else [list(row) for row in zip(*rows, strict=True)]


def _raw_responses(
    record: Mapping[str, Any], samples: int, turns: int, *, sample_first: bool | None
) -> list[list[str]] | None:
    """None where the record has none: its programs are then those of the conversations."""
    if record.get("raw_responses") is None:
        return None
    rows = _by_sample(record, "raw_responses", samples, turns, sample_first=sample_first)
    if not all(isinstance(text, str) for row in rows for text in row):
        raise UserError("field 'raw_responses' holds something that is no text")
    return rows


def _count(field: str, rate: float, tests: int) -> int:
    """How many of `tests` tests a rate stands for."""
    passed = round(rate * tests)
    if abs(rate * tests - passed) > _TOLERANCE * tests:
        raise UserError(
            f"field {field!r} holds {rate!r}, which is no share of {tests} tests: the rates are from other tests than"
            " the record's, so evaluate it again"
        )
    return passed
