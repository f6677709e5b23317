"""The codec between result files and trajectories: the only module that knows the paper's field names and axes.

| stage | fields | axes |
|---|---|---|
| single turn | `responses`, `exec_results` (all tests), and the generation fields | sample |
| multi turn | `conversations` | sample, message |
| multi turn | `raw_responses`, `public_pass_rates`, `public_exec_results`, and the generation fields | turn, sample |
| evaluation | `all_pass_rates` (hidden tests), `hidden_verdicts` | sample, turn |
| evaluated single turn | those of multi turn without `conversations`, and of evaluation; one turn | as there |

The generation fields are `finish_reasons`, `prompt_tokens`, `completion_tokens`, `costs` (in US dollars, if known) and
`errors`. A multi-turn record keeps the fields of the single-turn record that it continues, and replaces those of the
same name.

Files of the authors have fewer fields. A missing field is None in a `Turn`, and without `raw_responses` a response is
the assistant message. Records of the authors also lack this project's `finish_reasons` and `hidden_verdicts`. In such a
record, a field whose lengths fit only the other order of its axes is read in that order. Where the record has as many
turns as samples, the conversations decide (`axes_are_known`). A result of a single-turn file of the authors may have
one failed entry for the whole suite. Files are read one record at a time. This module judges and selects nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from cobalt.episode import Message
from cobalt.episode.trajectory import FinishReason, ProblemTrajectories, Trajectory, Turn
from cobalt.judge import ExecResult, VerdictKind
from cobalt.judge.verdict import read_passed
from cobalt.problems.problem import Problem, TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.records import iterate_records
from cobalt.stage.rows import Digest

PublicTests = Literal["benign", "perturbed"]
"""The tests that a run's feedback came from: a problem's public tests, or the perturbed ones of run_perturbation.py."""

_FINISH_REASONS = frozenset(get_args(FinishReason))
_ROLES = ("system", "user", "assistant")
_VERDICTS = {kind.value: kind for kind in VerdictKind}
# Field of a record, attribute of a turn, and the value that is written if the attribute is None.
_GENERATION_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("finish_reasons", "finish_reason", None),
    ("prompt_tokens", "prompt_tokens", None),
    ("completion_tokens", "completion_tokens", None),
    ("costs", "cost", None),
    ("errors", "error", ""),
)
# Field of a record, and attribute of a turn.
_TURN_FIELDS = {
    "raw_responses": "response",
    "public_pass_rates": "public_pass_rate",
    "public_exec_results": "public_result",
    "all_pass_rates": "hidden_pass_rate",
    "hidden_verdicts": "hidden_verdicts",
    **{field: name for field, name, _ in _GENERATION_FIELDS},
}
_OURS = ("finish_reasons", "hidden_verdicts")  # fields that records of the authors lack
_EVALUATION_FIELDS = ("all_pass_rates", "hidden_verdicts")  # [sample][turn]; the other fields are [turn][sample]

T = TypeVar("T")


# --- writing ------------------------------------------------------------------------------------------------------


def encode_single_turn(turns: Sequence[Turn], results: Sequence[ExecResult]) -> dict[str, Any]:
    """The fields that a single-turn run adds to a problem's fields.

    Args:
        turns: The first turn of each sample.
        results: The result of each turn on all tests of the problem.
    """
    fields = {
        "responses": [turn.response for turn in turns],
        "exec_results": [result.to_record() for result in results],
        **{field: [_recorded(turn, name, unknown) for turn in turns] for field, name, unknown in _GENERATION_FIELDS},
    }
    return _without_unknown_costs(fields, turns)


def encode_multi_turn(trajectories: Sequence[Trajectory], public_tests: PublicTests) -> dict[str, Any]:
    """The fields that a multi-turn run adds to those of its input; every turn must have a public result."""
    by_turn = list(zip(*(trajectory.turns for trajectory in trajectories), strict=True))
    fields = {
        "public_tests": public_tests,
        "conversations": [trajectory.messages for trajectory in trajectories],
        "raw_responses": [[turn.response for turn in turns] for turns in by_turn],
        "public_pass_rates": [[turn.public_pass_rate for turn in turns] for turns in by_turn],
        "public_exec_results": [[_present(turn.public_result).to_record() for turn in turns] for turns in by_turn],
        **{
            field: [[_recorded(turn, name, unknown) for turn in turns] for turns in by_turn]
            for field, name, unknown in _GENERATION_FIELDS
        },
    }
    return _without_unknown_costs(fields, [turn for turns in by_turn for turn in turns])


def encode_evaluation(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """The fields that evaluation adds to those of a multi-turn record; every turn must have hidden verdicts."""
    return {
        "all_pass_rates": [trajectory.hidden_pass_rates for trajectory in trajectories],
        "hidden_verdicts": [
            [[kind.value for kind in _present(turn.hidden_verdicts)] for turn in trajectory.turns]
            for trajectory in trajectories
        ],
    }


def encode_evaluated_single_turn(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """The fields that evaluation adds to those of a single-turn record: those of trajectories of one turn.

    There are no conversations, because a single-turn record does not have the system message.
    """
    fields = encode_multi_turn(trajectories, "benign") | encode_evaluation(trajectories)
    del fields["conversations"]
    return fields


def _recorded(turn: Turn, name: str, unknown: Any) -> Any:
    value = getattr(turn, name)
    return unknown if value is None else value


def _present(value: T | None) -> T:
    if value is None:
        raise ValueError("a turn cannot be written before it is judged")
    return value


def _without_unknown_costs(fields: dict[str, Any], turns: Sequence[Turn]) -> dict[str, Any]:
    """The fields, without `costs` if no response has a cost, as with models that are served locally."""
    if all(turn.cost is None for turn in turns):
        del fields["costs"]
    return fields


# --- reading ------------------------------------------------------------------------------------------------------


def read_trajectories(
    path: Path,
    *,
    unfinished: bool = False,
    digest: Digest | None = None,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Iterator[ProblemTrajectories]:
    """Read the records of a multi-turn or evaluated file, one at a time.

    Args:
        path: A file of this project or of the authors.
        unfinished: As for `cobalt.stage.records.iterate_records`.
        digest: Updated with the bytes of the file while they are read.
        prepare: Changes each record before it is decoded; its errors name the file and the record themselves.

    Raises:
        UserError: the file cannot be read or holds no record, or a record is malformed; the message names the record
            and the field.
    """
    empty = True
    for record in iterate_records(path, unfinished=unfinished, digest=digest):
        empty = False
        record = record if prepare is None else prepare(record)
        try:
            problem = Problem.parse(record)
            group = ProblemTrajectories(problem, decode_trajectories(problem, record))
        except UserError as error:
            raise UserError(f"{path}: record {record['id']!r}: {error}") from None
        yield group
    if empty:
        raise UserError(f"{path}: the file holds no record")


def decode_trajectories(problem: Problem, record: Mapping[str, Any]) -> tuple[Trajectory, ...]:
    """The trajectories of one multi-turn or evaluated record, by sample.

    Args:
        problem: The record's problem.
        record: The record; fields that a `Turn` does not have are ignored.

    Raises:
        UserError: the record has no responses, or a field is malformed; the message names the field.
    """
    conversations = _conversations(record)
    if conversations:
        shape = _Shape(len(conversations), len(_answers(conversations[0])))
    elif record.get("raw_responses"):
        rows = _lists(record, "raw_responses")
        shape = _Shape(len(rows[0]), len(rows))
    else:
        raise UserError("it has neither 'raw_responses' nor 'conversations': run a multi-turn script first")
    if not shape.samples or not shape.turns:
        raise UserError("it holds no response")
    columns = {name: _by_sample(record, field, shape) for field, name in _TURN_FIELDS.items()}
    known = {name: rows for name, rows in columns.items() if rows is not None}
    trajectories = []
    for sample in range(shape.samples):
        messages = conversations[sample] if conversations else []
        own: dict[str, Sequence[Any]] = {}
        if conversations:
            own |= {"response": _answers(messages), "feedback": _feedback(messages)}
        own |= {name: rows[sample] for name, rows in known.items()}
        turns = tuple(Turn(**dict(zip(own, values, strict=True))) for values in zip(*own.values(), strict=True))
        trajectories.append(Trajectory(problem, sample, messages, turns))
    return tuple(trajectories)


def axes_are_known(group: ProblemTrajectories) -> bool:
    """Whether the axes of a decoded record are certain; if not, they were assumed to be the paper's.

    In a record that this project did not write, the axes follow from the lengths of its lists. If the record has as
    many turns as samples, they are the paper's where its responses or results are those of its conversations, which
    have one order only: then the authors' multi-turn script wrote the record, and their evaluation, which writes
    `all_pass_rates` by sample, added to it.
    """
    record, samples, turns = group.problem.record, len(group.trajectories), len(group.trajectories[0].turns)
    return (
        samples != turns
        or samples == 1
        or all(record.get(field) is not None for field in _OURS)
        or _fits_the_conversations(group)
    )


def _fits_the_conversations(group: ProblemTrajectories) -> bool:
    """Whether each message of the model is a part of its response, and each feedback holds that of a failed test.

    False if the record has nothing to compare.
    """
    record = group.problem.record
    if "conversations" not in record or not {"raw_responses", "public_exec_results"} & record.keys():
        return False
    for trajectory in group.trajectories:
        for shown, turn in zip(_answers(trajectory.messages), trajectory.turns, strict=True):
            if shown not in turn.response:
                return False
            result = turn.public_result
            if result is None or turn.feedback is None or all(result.passing):
                continue
            if result.feedback[result.passing.index(False)].strip() not in turn.feedback:
                return False
    return True


def decode_first_turns(record: Mapping[str, Any]) -> tuple[Turn, ...] | None:
    """The responses of a single-turn record, by sample; None if the record has none (it is a problem only).

    Raises:
        UserError: a field is malformed; the message names the field.
    """
    responses = record.get("responses")
    if responses is None:
        return None
    if not isinstance(responses, list) or not responses or not all(isinstance(text, str) for text in responses):
        raise UserError("field 'responses' must be a non-empty list of strings")
    columns: dict[str, list[Any]] = {"response": responses}
    for field, name, _ in _GENERATION_FIELDS:
        column = record.get(field)
        if column is None:
            continue
        if not isinstance(column, list) or len(column) != len(responses):
            raise UserError(f"field {field!r} must have one entry for each response")
        columns[name] = _checked(field, column)
    return tuple(Turn(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True))


def decode_responses(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The responses of a single-turn or multi-turn record, `[sample][turn]`; other fields are not read.

    Raises:
        UserError: the record has no responses, or they are malformed.
    """
    if record.get("raw_responses"):
        rows = _lists(record, "raw_responses")
        checked = [_checked("raw_responses", row) for row in rows]
        return list(zip(*checked, strict=True))
    turns = decode_first_turns(record)
    if turns is None:
        raise UserError("it has neither 'raw_responses' nor 'responses'")
    return [(turn.response,) for turn in turns]


def decode_passing(record: Mapping[str, Any], tests: int) -> list[list[bool]]:
    """Which of the problem's tests each sample of a single-turn record passes, `[sample][test]`.

    Raises:
        UserError: the record has no results, or a result does not have one entry for each of `tests` tests.
    """
    results = record.get("exec_results")
    if not isinstance(results, list) or not results:
        raise UserError("it has no 'exec_results': run a single-turn script first")
    rows = [_whole(result, tests).get("passing") if isinstance(result, dict) else None for result in results]
    passing = [[read_passed(item) for item in row] for row in rows if isinstance(row, list) and len(row) == tests]
    if len(passing) != len(results):
        raise UserError("field 'exec_results' does not have one 'passing' entry for each test")
    return passing


def decode_results(record: Mapping[str, Any], tests: int) -> list[ExecResult]:
    """The results of the samples of a single-turn record on all tests of its problem.

    Raises:
        UserError: the record has no results, or a result is malformed or does not have one entry for each of `tests`
            tests.
    """
    decode_passing(record, tests)
    results = [ExecResult.from_record(_whole(result, tests)) for result in record["exec_results"]]
    if any(len(result.verdicts) != tests for result in results):
        raise UserError("field 'exec_results' does not have one verdict for each test")
    return results


def _whole(result: Mapping[str, Any], tests: int) -> Mapping[str, Any]:
    """A result with one entry for each test: the authors' judge writes a single failed one if no test was run."""
    feedback = result.get("feedback")
    if result.get("passing") != [False] or "verdicts" in result or not isinstance(feedback, list):
        return result
    return {**result, "passing": [False] * tests, "feedback": feedback[:1] * tests}


def recorded_public_tests(problem: Problem) -> PublicTests | None:
    """Which tests the feedback in a problem's multi-turn record came from; None in files of the authors.

    Raises:
        UserError: the record's field `public_tests` has another value.
    """
    value = problem.record.get("public_tests")
    if value is None or value == "benign" or value == "perturbed":
        return value
    raise UserError(f"field 'public_tests' is {value!r}: it must be 'benign' or 'perturbed'")


def feedback_tests(problem: Problem) -> TestSuite:
    """The tests that the feedback in a problem's multi-turn record came from.

    A record of the authors does not name these tests. Its feedback came from the perturbed tests if it has any.

    Raises:
        UserError: the perturbed tests are malformed, or the record's field `public_tests` has an unknown value.
    """
    perturbed = None if recorded_public_tests(problem) == "benign" else problem.perturbed_tests()
    return problem.public_tests if perturbed is None else perturbed


class _Shape(NamedTuple):
    samples: int
    turns: int


def _conversations(record: Mapping[str, Any]) -> list[list[Message]] | None:
    """The conversations of a record: a question, then programs with feedback; the last feedback may be missing."""
    value = record.get("conversations")
    if value is None:
        return None
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
        roles = [message["role"] for message in conversation]
        question = roles[:2] if roles[0] == "system" else roles[:1]
        rest = roles[len(question) :]
        if question[-1] != "user" or rest != (["assistant", "user"] * len(rest))[: len(rest)]:
            raise UserError(
                "a conversation is not a question followed by programs, each with its feedback"
                f" (roles: {', '.join(roles)})"
            )
    lengths = {len(_answers(conversation)) for conversation in value}
    if len(lengths) != 1:
        raise UserError(f"its conversations have different numbers of turns ({sorted(lengths)})")
    return value


def _answers(conversation: Sequence[Message]) -> list[str]:
    return [message["content"] for message in conversation if message["role"] == "assistant"]


def _feedback(conversation: Sequence[Message]) -> list[str | None]:
    """The user message after each program; None if the conversation ends with that program."""
    texts: list[str | None] = []
    for place, message in enumerate(conversation):
        if message["role"] == "assistant":
            texts.append(conversation[place + 1]["content"] if place + 1 < len(conversation) else None)
    return texts


def _lists(record: Mapping[str, Any], field: str) -> list[list[Any]]:
    rows = record[field]
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise UserError(f"field {field!r} must be a list of lists")
    if len({len(row) for row in rows}) > 1:
        raise UserError(f"field {field!r} has the wrong shape: its lists differ in length")
    return rows


def _by_sample(record: Mapping[str, Any], field: str, shape: _Shape) -> list[list[Any]] | None:
    """A field as `[sample][turn]`, with each entry checked; None if the record does not have the field."""
    if record.get(field) is None:
        return None
    rows = _lists(record, field)
    lengths = (len(rows), len(rows[0]) if rows else 0)
    sample_first, turn_first = tuple(shape), (shape.turns, shape.samples)
    evaluation = field in _EVALUATION_FIELDS
    order = sample_first if evaluation else turn_first
    ours = record.get("hidden_verdicts" if evaluation else "finish_reasons") is not None
    if lengths != order and not ours:
        order = turn_first if evaluation else sample_first
    if lengths != order:
        raise UserError(
            f"field {field!r} has the wrong shape: the record has {shape.samples} samples of {shape.turns} turns"
        )
    checked = [_checked(field, row) for row in rows]
    if shape.samples == shape.turns:
        return checked if evaluation else _transposed(checked)
    return checked if order == sample_first else _transposed(checked)


def _transposed(rows: Sequence[Sequence[T]]) -> list[list[T]]:
    return [list(row) for row in zip(*rows, strict=True)]


_LARGEST = 10**12
"""More tokens or US dollars than any response has; a record with more is malformed."""


class _Malformed(Exception):
    """An entry of a field has the wrong type or value."""


def _checked(field: str, row: Sequence[Any]) -> list[Any]:
    check, what = _CHECKS[field]
    try:
        return [check(None if value != value else value) for value in row]  # NaN is unknown, as null is
    except _Malformed:
        raise UserError(f"field {field!r} holds an entry that is not {what}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Malformed
    return value


def _error(value: Any) -> str:
    return "" if value is None else _text(value)


def _count(value: Any) -> int | None:
    if value is None:  # a first turn that was recorded without it
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise _Malformed
    return value


def _cost(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise _Malformed
    return float(value)


def _rate(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _Malformed
    return value


def _finish_reason(value: Any) -> FinishReason | None:
    if value is None:  # as above
        return None
    if not isinstance(value, str) or value not in _FINISH_REASONS:
        raise _Malformed
    return value  # type: ignore[return-value]


def _result(value: Any) -> ExecResult:
    if not isinstance(value, Mapping):
        raise _Malformed
    return ExecResult.from_record(value)


def _verdicts(value: Any) -> tuple[VerdictKind, ...]:
    if not isinstance(value, list) or not all(isinstance(kind, str) and kind in _VERDICTS for kind in value):
        raise _Malformed
    return tuple(_VERDICTS[kind] for kind in value)


# For each field, the function that checks an entry, and the words for what an entry must be.
_CHECKS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "raw_responses": (_text, "a string"),
    "public_pass_rates": (_rate, "a rate between 0 and 1"),
    "public_exec_results": (_result, "an execution result"),
    "all_pass_rates": (_rate, "a rate between 0 and 1"),
    "hidden_verdicts": (_verdicts, "a list of verdicts"),
    "finish_reasons": (_finish_reason, f"one of {', '.join(get_args(FinishReason))}, or null"),
    "prompt_tokens": (_count, "a number of tokens or null"),
    "completion_tokens": (_count, "a number of tokens or null"),
    "costs": (_cost, "a number or null"),
    "errors": (_error, "a string or null"),
}
