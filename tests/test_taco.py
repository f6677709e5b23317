"""TACO-verified into problems: each rule, function problems, real judging, resumption, and users' mistakes."""

import asyncio
import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FakeJudge, write_lines

from cobalt.datasets.taco import (
    Candidate,
    Rule,
    TacoSettings,
    capped_places,
    easiest_places,
    read_attempts,
    read_row,
    taco,
)
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import read_summary

STATEMENT = "Read a number from the input and print its square. " * 3
SQUARE = "print(int(input()) ** 2)"
WRONG = "print(int(input()) * 2)"


def row(identifier=1, *, tests=10, **fields):
    numbers = range(2, 2 + tests)
    suite = {"inputs": [f"{n}\n" for n in numbers], "outputs": [f"{n * n}\n" for n in numbers]}
    return {
        "id": identifier,
        "question": STATEMENT,
        "solutions": [SQUARE],
        "starter_code": "",
        "input_output": json.dumps(suite),
        "difficulty": "EASY",
        "source": "codeforces",
    } | fields


def function_row(identifier, fn_name, inputs, outputs, solutions, **fields):
    tests = json.dumps({"fn_name": fn_name, "inputs": inputs, "outputs": outputs})
    return row(identifier, input_output=tests, solutions=solutions, source="codewars", **fields)


def suite_json(inputs, outputs):
    return json.dumps({"inputs": inputs, "outputs": outputs})


# Rules on form


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"input_output": suite_json(["1"] * 7, ["1"] * 7)}, Rule.FEW_TESTS),
        ({"input_output": suite_json(["1"] * 8, ["1"] * 9)}, Rule.TYPES),
        ({"input_output": suite_json("12345678", "12345678")}, Rule.TYPES),
        ({"input_output": suite_json(["1"] * 7 + [1], ["1"] * 8)}, Rule.TYPES),
        ({"input_output": suite_json(["1"] * 8, ["1"] * 7 + [None])}, Rule.TYPES),
        ({"input_output": json.dumps({"inputs": ["1"] * 8})}, Rule.TYPES),
        ({"input_output": "[]"}, Rule.TYPES),
        ({"input_output": "{"}, Rule.TYPES),
        ({"input_output": "[" * 100_000}, Rule.TYPES),
        ({"input_output": json.dumps({"inputs": ["1"] * 7 + ["\ud800"], "outputs": ["1"] * 8})}, Rule.TYPES),
        ({"question": STATEMENT + "see the Image below"}, Rule.IMAGE),
        ({"question": STATEMENT + "\n![](http://x/y.png)"}, Rule.IMAGE),
        ({"question": "a" * 99 + " -+*" * 100}, Rule.SHORT),
        ({"input_output": json.dumps({"fn_name": "f", "inputs": [[1]] * 7 + [1], "outputs": [1] * 8})}, Rule.TYPES),
        ({"input_output": json.dumps({"fn_name": "f(", "inputs": [[1]] * 8, "outputs": [1] * 8})}, Rule.TYPES),
    ],
)
def test_each_rule_drops_its_rows(changes, rule):
    gc.collect()
    gc.disable()  # finalizers of other tests would fail where a row exhausts the stack
    try:
        assert read_row(row() | changes, TacoSettings()) is rule
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "changes",
    [
        {"input_output": suite_json(["1"] * 8, ["1"] * 8)},
        {"question": "a" * 100},
        {"question": STATEMENT + " ![](x)"},
        {"solutions": json.dumps([SQUARE]), "difficulty": None},
    ],
)
def test_rows_at_the_borders_of_the_rules_stay(changes):
    assert isinstance(read_row(row() | changes, TacoSettings()), Candidate)


@given(st.lists(st.text(max_size=6), max_size=60), st.integers(8, 24))
def test_the_cap_keeps_the_longest_and_shortest_inputs_in_their_order(inputs, most):
    places = capped_places(inputs, most)
    assert places == sorted(set(places))
    assert len(places) == min(len(inputs), most)
    if len(inputs) <= most:
        return
    kept = sorted(len(inputs[place]) for place in places)
    every = sorted(map(len, inputs))
    short = most // 4
    assert kept == every[:short] + every[len(every) - (most - short) :]


def test_of_equally_long_inputs_the_first_count_as_longer():
    assert capped_places(["x"] * 25, 20) == [*range(15), *range(20, 25)]


@given(st.lists(st.integers(0, 3), min_size=8, max_size=20), st.data())
def test_public_tests_are_the_easiest_of_the_attempts(passes, data):
    inputs = data.draw(st.lists(st.text(max_size=4), min_size=len(passes), max_size=len(passes)))
    suite = TestSuite(tuple(inputs), tuple(inputs))
    public = easiest_places(suite, 4, passes)
    hidden = [place for place in range(len(suite)) if place not in public]
    assert public == sorted(public)
    assert min(passes[place] for place in public) >= max(passes[place] for place in hidden)
    assert easiest_places(suite, 4, [1] * len(suite)) == easiest_places(suite, 4, None)


def test_without_attempts_the_shortest_inputs_are_public_and_the_first_of_equals():
    suite = TestSuite(("bb", "ccc", "a", "bb", "a", "bb"), ("",) * 6)
    assert easiest_places(suite, 4, None) == [0, 2, 3, 4]


# Function problems


NINE = [[[n, n + 1]] for n in range(9)]
FUNCTIONS = [
    function_row(
        "bare", "add", NINE, [2 * n + 1 for n in range(9)], ["def add(p): return sum(p)"], starter_code="def add(p):"
    ),
    # Values in lists of one.
    function_row(
        "wrapped", "add", NINE, [[2 * n + 1] for n in range(9)], ["def add(p): return sum(p)"]
    ),
    # Lists of one that are meant.
    function_row(
        "meant", "add", NINE, [[2 * n + 1] for n in range(9)], ["def add(p): return [sum(p)]"]
    ),
    # A Solution that imports nothing.
    function_row(
        "leetcode", "add", NINE, [2 * n + 1 for n in range(9)],
        ["class Solution:\n    def add(self, p: List[int]) -> int:\n        return reduce(int.__add__, p)"],
    ),
    # Tuples, floats, None and nesting.
    function_row(
        "values",
        "look",
        [[{"k": [n, "a b"]}, None] for n in range(9)],
        [[[n, "a b"], None, n / 4] for n in range(9)],
        ["def look(d, x): return (tuple(d['k']), x, d['k'][0] / 4)"],
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """One run over rows of every kind, really judged."""
    folder = tmp_path_factory.mktemp("taco")
    rows = [
        row("plain", solutions=["print(", WRONG, SQUARE]),
        *FUNCTIONS,
        row(
            "lines",
            input_output=suite_json([["2", str(n)] for n in range(9)], [["2", str(n)] for n in range(9)]),
            solutions=["n = int(input())\nprint(n)\nprint(int(input()))"],
        ),
        row("unsolved", solutions=[WRONG, "x = ", "while True: pass"]),
        row("without solutions", solutions=[]),
        row("few", tests=7),
        row("plain", tests=12),
        row("long", tests=30),
    ]
    source = write_lines(folder / "taco.jsonl", rows)
    settings = TacoSettings(folder / "out", source, dev_size=2)
    return source, settings, prepare(settings)


def prepare(settings, judge=None):
    async def all_of_it():
        if judge is not None:
            return (await taco(settings, judge)).summary
        async with LocalJudge(JudgeSettings(concurrency=1, cpu_seconds=1.0)) as real:
            return (await taco(settings, real)).summary

    return asyncio.run(all_of_it())


@pytest.mark.sandbox
def test_rows_are_kept_or_dropped_as_their_solutions_are_judged(prepared):
    _, settings, summary = prepared
    counts = {name.removeprefix("dropped: "): count for name, count in summary["rows"].items() if count}
    dropped = {Rule.UNSOLVED.value: 2, Rule.FEW_TESTS.value: 1, Rule.DUPLICATE.value: 1}
    assert counts == {"read": 12} | dropped | {"kept": 8, "of them called functions": 5}
    kept = load_problems(settings.output_dir / "train.jsonl") + load_problems(settings.output_dir / "dev.jsonl")
    outputs = {problem.id: problem.tests.outputs[1] for problem in kept}
    assert outputs.keys() == {"plain", "long", "lines", "bare", "wrapped", "meant", "leetcode", "values"}
    assert outputs["lines"] == "2\n1"
    assert outputs["wrapped"] == "3"
    assert outputs["meant"] == "[3]"
    assert outputs["values"] == '[[1, "a b"], null, 0.25]'


@pytest.mark.sandbox
def test_the_output_has_the_schema_of_taco_cobalt(prepared):
    _, settings, summary = prepared
    assert summary["splits"] == {"train": 6, "dev": 2}
    fields = ["id", "difficulty", "question", "test_cases", "instruction", "public_test_cases", "hidden_test_cases"]
    for split in ("train", "dev"):
        for problem in load_problems(settings.output_dir / f"{split}.jsonl"):
            assert list(problem.record) == fields
            assert len(problem.public_tests) == 4
            assert len(problem.tests) <= 20
            public, hidden = map(problem.tests.positions_of, (problem.public_tests, problem.hidden_tests))
            assert sorted(public + hidden) == [*range(len(problem.tests))]
            assert hidden == sorted(hidden)
            assert problem.question in problem.instruction
            assert ("reads from standard input" in problem.instruction) == (problem.tests.fn_name is None)
            assert problem.tests.fn_name == problem.public_tests.fn_name == problem.hidden_tests.fn_name
            if problem.id == "bare":
                assert problem.question.endswith("Starter code:\n```python\ndef add(p):\n```")


def test_the_split_is_seeded_and_leaves_the_order_of_the_source(tmp_path):
    source = write_lines(tmp_path / "taco.jsonl", [row(number) for number in range(30)])
    dev = {}
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        prepare(TacoSettings(folder, source, dev_size=10, seed=seed), FakeJudge(True))
        ids = [[problem.id for problem in load_problems(folder / f"{name}.jsonl")] for name in ("train", "dev")]
        assert sorted(ids[0] + ids[1]) == list(range(30))
        assert all(part == sorted(part) for part in ids)
        dev[seed] = ids[1]
    assert len(dev[1]) == 10
    assert dev[1] != dev[2]


def test_recorded_attempts_choose_the_public_tests(tmp_path):
    source = write_lines(tmp_path / "taco.jsonl", [row(number) for number in range(4)])
    first = TacoSettings(tmp_path / "out", source, dev_size=1)
    prepare(first, FakeJudge(True))
    [problem, *_] = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    passing = [[place in (1, 3, 5, 9) for place in range(10)], [place in (1, 3, 5, 9, 0) for place in range(10)]]
    attempts = write_lines(
        tmp_path / "single.jsonl",
        [problem | {"exec_results": [{"passing": p, "feedback": [""] * 10} for p in passing]}],
    )
    for name in ("train", "dev"):
        (tmp_path / "out" / f"{name}.jsonl").unlink()
    summary = prepare(TacoSettings(tmp_path / "out", source, attempts_file=attempts, dev_size=1), FakeJudge(None))
    assert summary["public tests"] == {"by recorded attempts": 1, "by length of the input": 3}
    again = next(p for p in load_problems(tmp_path / "out" / "train.jsonl") if p.id == problem["id"])
    assert again.public_tests.inputs == ("3\n", "5\n", "7\n", "11\n")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "has no 'exec_results'"),
        ({"exec_results": [{"passing": [True]}]}, "one 'passing' entry for each test"),
        ({"exec_results": [3]}, "field 'exec_results.0'"),
        ({"test_cases": 3}, "field 'test_cases'"),
    ],
)
def test_malformed_attempts_are_refused(tmp_path, fields, message):
    record = {"id": 1, "test_cases": suite_json(["1"] * 8, ["1"] * 8)} | fields
    with pytest.raises(UserError, match=message):
        read_attempts(write_lines(tmp_path / "single.jsonl", [record]))


def test_attempts_on_other_tests_are_refused(tmp_path):
    source = write_lines(tmp_path / "taco.jsonl", [row(number) for number in range(4)])
    results = [{"passing": [True], "feedback": [""]}]
    record = {"id": 2, "test_cases": suite_json(["1"], ["1"]), "exec_results": results}
    attempts = write_lines(tmp_path / "single.jsonl", [record])
    with pytest.raises(UserError, match="single.jsonl.* 2 "):
        prepare(TacoSettings(tmp_path / "out", source, attempts_file=attempts, dev_size=1), FakeJudge(True))
    write_lines(attempts, [record | {"id": "elsewhere"}])
    with pytest.raises(UserError, match="single.jsonl"):
        prepare(TacoSettings(tmp_path / "out", source, attempts_file=attempts, dev_size=1), FakeJudge(None))
    assert {path.name for path in (tmp_path / "out").glob("*.jsonl*")} == {"rows.jsonl"}
    tests = json.dumps({"inputs": [f"{n}\n" for n in range(2, 12)], "outputs": [f"{n * n}\n" for n in range(2, 12)]})
    write_lines(
        attempts, [record | {"test_cases": tests, "exec_results": [{"passing": [True] * 10, "feedback": [""] * 10}]}]
    )
    summary = prepare(TacoSettings(tmp_path / "out", source, attempts_file=attempts, dev_size=1), FakeJudge(None))
    assert summary["public tests"]["by recorded attempts"] == 1


def test_rows_and_tests_left_out_are_counted_by_reason_with_their_first_ids(tmp_path):
    bad = [{"question": None}, {"solutions": [1]}]
    unreadable = [{"input_output": None}, {"input_output": float("nan")}, {"input_output": "["}]
    rows = [row(number) | fields for number, fields in enumerate([{}, {}, *bad, *unreadable, {"solutions": None}])]
    rows += [row(0), *(row(f"short {number}") | {"question": "Too short."} for number in range(7))]
    source = write_lines(tmp_path / "taco.jsonl", rows)
    summary = prepare(TacoSettings(tmp_path / "out", source, dev_size=1, max_tests=8), FakeJudge(True))
    assert summary["rows"]["read"] == len(rows)
    first = summary["first left out"]
    assert ["line 3" in first["malformed"][0], "question" in first["malformed"][0]] == [True, True]
    assert len(first["malformed"]) == summary["rows"]["dropped: malformed"] == 2
    assert first[Rule.TYPES.value] == ["4", "5", "6"]
    assert first[Rule.UNSOLVED.value] == ["7"]
    assert first[Rule.DUPLICATE.value] == ["0"]
    assert first[Rule.SHORT.value] == [f"short {number}" for number in range(5)]
    assert summary["rows"][f"dropped: {Rule.SHORT.value}"] == 7
    tests = len(json.loads(row(0)["input_output"])["inputs"])
    assert summary["tests"] == {"left out: tests over max_tests": 2 * (tests - 8)}
    assert read_summary(tmp_path / "out" / "train.jsonl") == summary


@pytest.mark.sandbox
def test_the_papers_way_of_calling_loses_types_and_is_an_option(tmp_path):
    words = [["a", "b"], ["c d", "e"]] * 4
    rows = [
        function_row(1, "join", [["a", "b"]] * 8, [["ab"]] * 8, ["def join(x, y): return x + y"]),
        function_row(2, "join", words, [[x + y] for x, y in words], ["def join(x, y): return x + y"]),
        function_row(3, "add", [[1, 2]] * 8, [3] * 8, ["def add(x, y): return x + y"]),
    ]
    source = write_lines(tmp_path / "taco.jsonl", rows)
    called = prepare(TacoSettings(tmp_path / "call", source, dev_size=0))
    assert called["rows"]["kept"] == 3
    paper = prepare(TacoSettings(tmp_path / "paper", source, dev_size=0, function_tests="paper"))
    assert paper["rows"]["kept"] == 1
    [problem] = load_problems(tmp_path / "paper" / "train.jsonl")
    assert problem.tests.inputs[0] == "a b"
    assert problem.tests.fn_name is None
    assert "reads from standard input" in problem.instruction


@pytest.mark.parametrize(
    ("rows", "settings", "says"),
    [([row(number) for number in range(3)], {}, "3 problems are left"), ([row()], {"public_tests": 8}, "public_tests")],
)
def test_a_file_or_a_setting_that_leaves_no_problem_is_refused(tmp_path, rows, settings, says):
    with pytest.raises(UserError, match=says):
        prepare(TacoSettings(tmp_path / "out", write_lines(tmp_path / "t.jsonl", rows), **settings), FakeJudge(True))
