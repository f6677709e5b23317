"""Result files and trajectories: reading is the inverse of writing, files with fewer fields load, bugs are not data."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, square_problem, trajectories_of, trajectory_record, write_lines

from cobalt.episode.record import (
    axes_are_known,
    decode_first_turns,
    decode_responses,
    decode_results,
    decode_trajectories,
    encode_evaluation,
    encode_multi_turn,
    encode_single_turn,
    read_trajectories,
)
from cobalt.episode.trajectory import Trajectory, Turn
from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.problems.problem import Problem
from cobalt.stage.errors import UserError
from cobalt.stage.records import encode_record, iterate_records

PROBLEM = Problem.parse(square_problem("p"))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
KINDS = st.sampled_from(list(VerdictKind))


GENERATED = {
    "finish_reason": st.sampled_from([None, "stop", "length", "prompt_too_long", "error"]),
    "prompt_tokens": st.none() | st.integers(0, 99),
    "completion_tokens": st.none() | st.integers(0, 99),
    "cost": st.none() | st.floats(0, 1),
    "error": TEXT,
    "response": TEXT,
}


@st.composite
def judged_turns(draw):
    public, hidden = (tuple(draw(st.lists(KINDS, min_size=2, max_size=2))) for _ in range(2))
    passing = [kind is VerdictKind.PASSED for kind in public]
    return Turn(
        **{name: draw(values) for name, values in GENERATED.items()},
        public_pass_rate=sum(passing) / 2,
        public_result=ExecResult(passing, [draw(TEXT), draw(TEXT)], [Verdict(kind, 0.5) for kind in public]),
        hidden_pass_rate=hidden.count(VerdictKind.PASSED) / 2,
        hidden_verdicts=hidden,
        feedback=draw(TEXT),
    )


@st.composite
def groups(draw):
    samples, turns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    trajectories = []
    for sample in range(samples):
        own = tuple(draw(judged_turns()) for _ in range(turns))
        messages = [{"role": "user", "content": "go"}]
        for turn in own:
            messages += [{"role": "assistant", "content": "kept"}, {"role": "user", "content": turn.feedback}]
        trajectories.append(Trajectory(PROBLEM, sample, messages, own))
    return tuple(trajectories)


@given(groups())
def test_what_is_written_is_read_back_as_it_was(trajectories):
    record = dict(PROBLEM.record) | encode_multi_turn(trajectories, "benign") | encode_evaluation(trajectories)
    read = json.loads(json.dumps(record))
    assert decode_trajectories(PROBLEM, read) == trajectories
    assert decode_responses(read) == [tuple(turn.response for turn in one.turns) for one in trajectories]


@given(st.lists(judged_turns(), min_size=1, max_size=4))
def test_first_turns_are_read_back_as_they_were(turns):
    record = json.loads(json.dumps(encode_single_turn(turns, [turn.public_result for turn in turns])))
    for turn, other in zip(turns, decode_first_turns(record), strict=True):
        assert all(getattr(turn, name) == getattr(other, name) for name in GENERATED)


STAGES = ROOT / "tests" / "data" / "outside" / "stages"
RECORDED = ROOT / "tests" / "data" / "recorded_run"


def encoded(record):
    """The fields of a result's record, decoded and encoded again."""
    problem = Problem.parse(record)
    if "raw_responses" not in record:
        return encode_single_turn(decode_first_turns(record), decode_results(record, len(problem.tests)))
    trajectories = decode_trajectories(problem, record)
    fields = encode_multi_turn(trajectories, record["public_tests"])
    return fields | (encode_evaluation(trajectories) if "all_pass_rates" in record else {})


@pytest.mark.parametrize(
    "path",
    [
        *(STAGES / stage / "whole" / f"{stage}.jsonl" for stage in ("single_turn", "multi_turn", "evaluation")),
        STAGES / "single_turn_evaluation" / "whole" / "evaluation.jsonl",
        *(RECORDED / f"{name}.jsonl" for name in ("single_turn", "multi_turn", "evaluation")),
        *(RECORDED / f"{name}_perturbed.jsonl" for name in ("multi_turn", "evaluation")),
    ],
    ids=lambda path: str(path.relative_to(ROOT / "tests" / "data")),
)
def test_a_recorded_file_is_written_again_byte_for_byte(path):
    assert b"".join(encode_record(record | encoded(record)) for record in iterate_records(path)) == path.read_bytes()


def test_fields_that_nobody_here_knows_stay_where_they_were():
    record = trajectory_record(0, [[(0, 0)]], zebra=[1], ape=None)
    record["conversations"] = [[{"name": "x", "content": one["content"], "role": one["role"]}
                                for one in record["conversations"][0]]]  # fmt: skip
    group = trajectories_of(record)
    assert list(group.problem.record) == list(record)
    assert json.dumps(group.trajectories[0].messages) == json.dumps(record["conversations"][0])


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("prompt_tokens", float("nan"), None),
        ("costs", 3, 3.0),
        ("costs", float("nan"), None),
        ("errors", None, ""),
        ("finish_reasons", float("nan"), None),
        ("raw_responses", "\ud800", "\ud800"),
    ],
)
def test_an_unknown_value_is_read_as_none_and_a_text_as_it_is(field, value, read):
    name = {"costs": "cost", "errors": "error", "finish_reasons": "finish_reason", "raw_responses": "response"}
    record = trajectory_record(0, [[(0, 0)]]) | {field: [[value]]}
    assert getattr(trajectories_of(record).trajectories[0].turns[0], name.get(field, field)) == read


def test_a_malformed_entry_is_named_by_file_record_field_and_index(tmp_path):
    records = [trajectory_record(identifier, [[(0, 0), (0, 0)]]) for identifier in "ab"]
    records[1]["errors"] = [[""], [5]]
    path = write_lines(tmp_path / "e.jsonl", records)
    reading = read_trajectories(path)
    assert next(reading).problem.id == "a"  # a record is read when it is its turn
    with pytest.raises(UserError) as error:
        next(reading)
    assert all(word in str(error.value) for word in (str(path), "'b'", "errors.1.0"))
    path.write_text("\n")
    with pytest.raises(UserError, match="no record"):
        list(read_trajectories(path))


def test_a_record_with_conversations_alone_has_responses_and_feedback_and_nothing_else():
    conversation = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "```python\nprint(1)\n```"},
        {"role": "user", "content": "f"},
        {"role": "assistant", "content": "no program"},
    ]
    [trajectory] = trajectories_of(square_problem(0, conversations=[conversation])).trajectories
    first, last = trajectory.turns
    assert first == Turn("```python\nprint(1)\n```", feedback="f")
    assert (first.program, last.program, last.feedback) == ("print(1)", None, None)
    assert trajectory.context(1) == conversation[:4]
    for name in ("public_pass_rates", "hidden_pass_rates"):
        with pytest.raises(UserError):
            getattr(trajectory, name)


THREE_BY_TWO = trajectory_record(0, [[(0, 0), (1, 1)], [(1, 2), (2, 2)], [(0, 1), (1, 0)]])


def others(record, *transposed):
    """The record as another project would write it, with some fields in the other order."""
    record = {name: value for name, value in record.items() if name not in ("finish_reasons", "hidden_verdicts")}
    return record | {name: [list(row) for row in zip(*record[name], strict=True)] for name in transposed}


@pytest.mark.parametrize("transposed", [(), ("all_pass_rates",), ("raw_responses", "public_pass_rates")])
def test_the_other_order_of_axes_is_read_where_lengths_tell_it(transposed):
    def figures(record):
        return [
            [(turn.response, turn.public_pass_rate, turn.hidden_pass_rate) for turn in trajectory.turns]
            for trajectory in trajectories_of(record).trajectories
        ]

    assert figures(others(THREE_BY_TWO, *transposed)) == figures(THREE_BY_TWO)


def test_records_of_this_project_are_read_in_their_own_order_only():
    swapped = [list(row) for row in zip(*THREE_BY_TWO["all_pass_rates"], strict=True)]
    with pytest.raises(UserError, match="'all_pass_rates'"):
        trajectories_of(THREE_BY_TWO | {"all_pass_rates": swapped})


def test_axes_are_uncertain_only_where_others_have_as_many_turns_as_samples_and_no_conversations_tell_them():
    def known(record):
        return axes_are_known(trajectories_of(record))

    square = trajectory_record(0, [[(0, 0), (1, 2)], [(1, 2), (2, 0)]], feedback=lambda s, t: f"Feedback:\ngot {t}.{s}")
    assert known(square) and known(others(THREE_BY_TWO)) and not known(others(square))
    assumed = trajectories_of(others(square)).trajectories
    assert [one.hidden_pass_rates for one in assumed] == [[0, 1], [1, 0]]
    assert [turn.response for turn in assumed[1].turns] == ["response 1.0", "response 1.1"]
    for text in ("answer {}.{}", "<think>t</think>\n\nanswer {}.{}\n"):  # what the conversations have, and more
        raw = [[text.format(sample, turn) for sample in (0, 1)] for turn in (0, 1)]
        assert known(others(square | {"raw_responses": raw}))
        assert not known(others(square | {"raw_responses": raw}, "raw_responses"))
    results = [[{"passing": [False], "feedback": [f"got {turn}.{sample}"]} for sample in (0, 1)] for turn in (0, 1)]
    without = {name: value for name, value in square.items() if name != "raw_responses"}
    assert not known(others(without))
    assert known(others(without | {"public_exec_results": results}))
    assert not known(others(without | {"public_exec_results": results}, "public_exec_results"))


NO_NUMBERS = [10**5000, -(10**5000), float("inf"), float("-inf"), True, "1", {}]
NUMBERS = ("prompt_tokens", "costs", "public_pass_rates")
MALFORMED = [
    ("raw_responses", [["a", "b", 3]] * 2),
    ("public_pass_rates", [[0.0, 0.5, 1.5]] * 2),
    ("public_exec_results", [[None] * 3] * 2),
    ("all_pass_rates", [[0.5, "1"]] * 3),
    ("hidden_verdicts", [[["tired"], []]] * 3),
    ("prompt_tokens", [[1, 2, -3]] * 2),
    ("costs", [[0.1, None, "1"]] * 2),
    ("conversations", [[]]),
    ("conversations", [[{"role": "assistant", "content": "a"}]]),
    *((field, [[value] * 3] * 2) for field in NUMBERS for value in NO_NUMBERS),
]


@pytest.mark.parametrize(("field", "value"), MALFORMED, ids=[field for field, _ in MALFORMED])
def test_a_malformed_field_is_named(field, value):
    with pytest.raises(UserError, match=field.removesuffix("s")):
        trajectories_of(THREE_BY_TWO | {field: value})


@pytest.mark.parametrize("passing", [["no", "false"], [None, 2]])
def test_whether_a_test_passed_is_a_truth_value_or_0_or_1(passing):
    good = {"passing": [True, 1], "feedback": ["", ""], "queue_seconds": 0.5}
    assert ExecResult.from_record(good).passing == [True, True]
    with pytest.raises(UserError, match="passing"):
        ExecResult.from_record(good | {"passing": passing})
