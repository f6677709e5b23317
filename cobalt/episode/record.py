"""Records of result files and trajectories: the only module that knows the paper's field names and axes.

| stage | fields | axes |
|---|---|---|
| single turn | `responses`, `exec_results` (all tests), and the generation fields | sample |
| multi turn | `conversations` | sample, message |
| multi turn | `raw_responses`, `public_pass_rates`, `public_exec_results`, and the generation fields | turn, sample |
| evaluation | `all_pass_rates` (hidden tests), `hidden_verdicts` | sample, turn |
| evaluated single turn | those of multi turn without `conversations`, and of evaluation; one turn | as there |

The generation fields are `finish_reasons`, `prompt_tokens`, `completion_tokens`, `costs` (in US dollars, if known) and
`errors`. A multi-turn record keeps the fields of the single-turn record that it continues, and replaces those of the
same name. Files of the authors have fewer fields: a missing one is None in a `Turn`, and without `raw_responses` a
response is the assistant message.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from cobalt.episode import Message
from cobalt.episode.trajectory import FinishReason, ProblemTrajectories, Trajectory, Turn
from cobalt.judge import ExecResult, VerdictKind
from cobalt.problems.problem import Problem, TestSuite
from cobalt.stage.errors import UserError, naming
from cobalt.stage.records import checked, iterate_records

PublicTests = Literal["benign", "perturbed"]
"""The tests that a run's feedback came from: a problem's public tests, or the perturbed ones of run_perturbation.py."""

T = TypeVar("T")
_LARGEST = 10**12
"""More tokens or US dollars than any response has; a record with more is malformed."""
_OrNull = Annotated[T | None, BeforeValidator(lambda value: None if value != value else value)]  # NaN is null
_Tokens = _OrNull[Annotated[int, Field(strict=True, ge=0, le=_LARGEST)]]
_Cost = _OrNull[Annotated[float, Field(strict=True, ge=0, le=_LARGEST)]]
_Error = Annotated[str, BeforeValidator(lambda value: "" if value is None or value != value else value)]
_Rate = Annotated[float, Field(strict=True, ge=0, le=1)]
_Result = dict[str, Any]  # read by `ExecResult.from_record`


class _SampleColumns(TypedDict, total=False):
    """The fields of a single-turn record, by sample."""

    responses: Annotated[list[str], Field(min_length=1)]
    exec_results: list[_Result]
    finish_reasons: list[_OrNull[FinishReason]]
    prompt_tokens: list[_Tokens]
    completion_tokens: list[_Tokens]
    costs: list[_Cost]
    errors: list[_Error]


class _TurnColumns(TypedDict, total=False):
    """The fields of a multi-turn or evaluated record; the head of the module has the axes."""

    public_tests: PublicTests
    conversations: Annotated[list[list[Message]], Field(min_length=1)]
    raw_responses: list[list[str]]
    public_pass_rates: list[list[_Rate]]
    public_exec_results: list[list[_Result]]
    finish_reasons: list[list[_OrNull[FinishReason]]]
    prompt_tokens: list[list[_Tokens]]
    completion_tokens: list[list[_Tokens]]
    costs: list[list[_Cost]]
    errors: list[list[_Error]]
    all_pass_rates: list[list[_Rate]]
    hidden_verdicts: list[list[tuple[VerdictKind, ...]]]


# Field of a record, and attribute of a turn.
_GENERATION = {
    "finish_reasons": "finish_reason",
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "costs": "cost",
    "errors": "error",
}
_EVALUATION = {"all_pass_rates": "hidden_pass_rate", "hidden_verdicts": "hidden_verdicts"}
_JUDGED = {"raw_responses": "response", "public_pass_rates": "public_pass_rate", "public_exec_results": "public_result"}
_TURN = _JUDGED | _EVALUATION | _GENERATION


def encode_single_turn(turns: Sequence[Turn], results: Sequence[ExecResult]) -> dict[str, Any]:
    """The fields that a single-turn run adds to a problem's: by sample, first turns and their results on all tests."""
    return {
        "responses": [turn.response for turn in turns],
        "exec_results": [result.to_record() for result in results],
        **{field: row for field, [row] in _encoded([turns], _GENERATION).items()},
    }


def encode_multi_turn(trajectories: Sequence[Trajectory], public_tests: PublicTests) -> dict[str, Any]:
    """The fields that a multi-turn run adds to those of its input; every turn must have a public result.

    There are no conversations where the trajectories have none, as those of a single-turn record, which does not have
    the system message.
    """
    by_turn = list(zip(*(trajectory.turns for trajectory in trajectories), strict=True))
    conversations = [trajectory.messages for trajectory in trajectories if trajectory.messages]
    shown = {"conversations": conversations} if conversations else {}
    return {"public_tests": public_tests, **shown, **_encoded(by_turn, _JUDGED | _GENERATION)}


def encode_evaluation(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """The fields that evaluation adds to those of a multi-turn record; every turn must have hidden verdicts."""
    return _encoded([trajectory.turns for trajectory in trajectories], _EVALUATION)


def _encoded(rows: Sequence[Sequence[Turn]], names: Mapping[str, str]) -> dict[str, list[list[Any]]]:
    """Fields of rows of turns, without `costs` if no response has one, as of a model served locally."""

    def value(turn: Turn, name: str) -> Any:
        own = getattr(turn, name)
        if name == "hidden_verdicts":
            return [kind.value for kind in own]
        return own.to_record() if name == "public_result" else own

    fields = {field: [[value(turn, name) for turn in row] for row in rows] for field, name in names.items()}
    if not any(cost is not None for row in fields.get("costs", []) for cost in row):
        fields.pop("costs", None)
    return fields


def read_trajectories(path: Path, *, unfinished: bool = False) -> Iterator[ProblemTrajectories]:
    """Read the records of a multi-turn or evaluated file, one at a time.

    Args:
        path: A file of this project or of the authors.
        unfinished: As for `cobalt.stage.records.iterate_records`.

    Raises:
        UserError: the file cannot be read or holds no record, or a record is malformed; the message names the record
            and the field.
    """
    empty = True
    for record in iterate_records(path, unfinished=unfinished):
        empty = False
        with naming(f"{path}: record {record['id']!r}"):
            problem = Problem.parse(record)
            group = ProblemTrajectories(problem, decode_trajectories(problem, record))
        yield group
    if empty:
        raise UserError(f"{path}: the file holds no record")


def decode_trajectories(problem: Problem, record: Mapping[str, Any]) -> tuple[Trajectory, ...]:
    """The trajectories of one multi-turn or evaluated record, by sample.

    Raises UserError: the record has no responses, or a field is malformed; the message names the field.
    """
    columns = _columns(_TurnColumns, record, ("public_tests", "conversations", *_TURN))
    columns.pop("public_tests", None)
    conversations: list[list[Message]] = []
    if columns.pop("conversations", None):
        conversations = record["conversations"]  # with the fields of each message in their order
        turns = _programs_of_each(conversations)
        samples = len(conversations)
    elif rows := columns.get("raw_responses"):
        samples, turns = len(rows[0]), len(rows)
    else:
        raise UserError(
            "it has neither 'raw_responses' nor 'conversations': run a multi-turn script first, or eval_single_turn.py"
        )
    if not samples or not turns:
        raise UserError("it holds no response")
    by_sample = _by_sample(columns, samples, turns)
    if "public_result" in by_sample:
        by_sample["public_result"] = [list(map(ExecResult.from_record, row)) for row in by_sample["public_result"]]
    if conversations:
        by_sample.setdefault("response", [_said(messages, "assistant") for messages in conversations])
        # After the question; the last program perhaps has no feedback.
        by_sample["feedback"] = [[*_said(messages, "user")[1:], None][:turns] for messages in conversations]
    own = (_turns({name: rows[sample] for name, rows in by_sample.items()}) for sample in range(samples))
    return tuple(
        Trajectory(problem, sample, messages, turns)
        for sample, (messages, turns) in enumerate(zip(conversations or [[]] * samples, own, strict=True))
    )


def _by_sample(columns: Mapping[str, Sequence[Sequence[Any]]], samples: int, turns: int) -> dict[str, list[Any]]:
    """The attributes of the turns as `[sample][turn]`, from the fields of a record: here alone axes are guessed.

    A record that this project wrote has its own order. In one of the authors, a field whose lengths fit only the other
    order has the other order.
    """
    attributes = {}
    for field, rows in columns.items():
        sample_first = field in _EVALUATION
        ours = ("hidden_verdicts" if sample_first else "finish_reasons") in columns
        own, other = ((samples, turns), (turns, samples))[:: 1 if sample_first else -1]
        lengths = {(len(rows), len(row)) for row in rows}
        if lengths != {own} and (ours or lengths != {other}):
            raise UserError(f"field {field!r} has the wrong shape: the record has {samples} samples of {turns} turns")
        by_sample = sample_first == (lengths == {own})
        attributes[_TURN[field]] = list(rows if by_sample else zip(*rows, strict=True))
    return attributes


def axes_are_known(group: ProblemTrajectories) -> bool:
    """Whether the axes of a decoded record are certain.

    In a record that this project did not write, they follow from the lengths of its lists, and are assumed to be the
    paper's where there are as many turns as samples.
    """
    record, samples, turns = group.problem.record, len(group.trajectories), len(group.trajectories[0].turns)
    ours = all(record.get(field) is not None for field in ("finish_reasons", "hidden_verdicts"))
    return ours or samples != turns or samples == 1


def decode_first_turns(record: Mapping[str, Any]) -> tuple[Turn, ...] | None:
    """The responses of a single-turn record, by sample; None if the record has none (it is a problem only).

    Raises UserError: a field is malformed; the message names the field.
    """
    if record.get("responses") is None:
        return None
    columns = _columns(_SampleColumns, record, ("responses", *_GENERATION))
    for field, column in columns.items():
        if len(column) != len(columns["responses"]):
            raise UserError(f"field {field!r} must have one entry for each response")
    return _turns({_GENERATION.get(field, "response"): column for field, column in columns.items()})


def decode_responses(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The responses of a single-turn or multi-turn record, `[sample][turn]`; other fields are not read.

    Raises UserError: the record has no responses, or they are malformed.
    """
    if rows := _columns(_TurnColumns, record, ("raw_responses",)).get("raw_responses"):
        if len({len(row) for row in rows}) > 1:
            raise UserError("field 'raw_responses' has the wrong shape: its lists differ in length")
        return list(zip(*rows, strict=True))
    responses = _columns(_SampleColumns, record, ("responses",)).get("responses")
    if responses is None:
        raise UserError("it has neither 'raw_responses' nor 'responses'")
    return [(response,) for response in responses]


def decode_results(record: Mapping[str, Any], tests: int) -> list[ExecResult]:
    """The results of the samples of a single-turn record on all tests of its problem.

    The authors' judge writes a single failed entry if no test was run. Raises UserError: the record has no results, or
    a result is malformed or does not have one entry for each of `tests` tests.
    """
    results: list[_Result] = _columns(_SampleColumns, record, ("exec_results",)).get("exec_results", [])
    if not results:
        raise UserError("it has no 'exec_results': run a single-turn script first")
    for result in results:  # copies of the record's
        feedback = result.get("feedback")
        if result.get("passing") == [False] and isinstance(feedback, list) and "verdicts" not in result:
            result |= {"passing": [False] * tests, "feedback": feedback[:1] * tests}
        if not isinstance(result.get("passing"), list) or len(result["passing"]) != tests:
            raise UserError("field 'exec_results' does not have one 'passing' entry for each test")
    return list(map(ExecResult.from_record, results))


def recorded_public_tests(problem: Problem) -> PublicTests | None:
    """Kind of tests that the feedback in a problem's multi-turn record came from; None in files of the authors."""
    public_tests: PublicTests | None = problem.record.get("public_tests")
    return public_tests


def feedback_tests(problem: Problem) -> TestSuite:
    """The tests that the feedback in a problem's multi-turn record came from.

    A record of the authors does not name these tests. Its feedback came from the perturbed tests if it has any.
    Raises UserError: the perturbed tests are malformed.
    """
    perturbed = None if recorded_public_tests(problem) == "benign" else problem.perturbed_tests()
    return problem.public_tests if perturbed is None else perturbed


def _columns(kind: type[Mapping[str, Any]], record: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Those of some fields that a record has, with their values checked."""
    return dict(checked(kind, {field: record[field] for field in fields if record.get(field) is not None}))


def _turns(columns: Mapping[str, Sequence[Any]]) -> tuple[Turn, ...]:
    """The turns whose attributes are in columns."""
    return tuple(Turn(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True))


def _programs_of_each(conversations: Sequence[Sequence[Message]]) -> int:
    """Number of programs in each conversation (a question, then programs with feedback, the last perhaps without)."""
    for conversation in conversations:
        roles = [message["role"] for message in conversation]
        opening = 2 if roles[:1] == ["system"] else 1
        rest = roles[opening:]
        if roles[opening - 1 : opening] != ["user"] or rest != (["assistant", "user"] * len(rest))[: len(rest)]:
            raise UserError(
                "field 'conversations': one is not a question followed by programs, each with its feedback"
                f" (roles: {', '.join(roles)})"
            )
    lengths = {len(_said(conversation, "assistant")) for conversation in conversations}
    if len(lengths) != 1:
        raise UserError(f"field 'conversations': they have different numbers of turns ({sorted(lengths)})")
    return lengths.pop()


def _said(conversation: Sequence[Message], role: str) -> list[str]:
    return [message["content"] for message in conversation if message["role"] == role]
