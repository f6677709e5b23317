"""TACO-verified into problems: each rule, function problems, real judging, resumption, and users' mistakes."""

import gc
import json
from contextlib import nullcontext

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import FakeJudge, write_lines

from cobalt.datasets.readings import Task
from cobalt.datasets.taco import Rule, TacoSettings, capped_indices, easiest_indices, read_row, taco
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


def suite_json(inputs, outputs, **more):
    return json.dumps({"inputs": inputs, "outputs": outputs} | more)


def function_row(identifier, fn_name, inputs, outputs, solution, **fields):
    tests = suite_json(inputs, outputs, fn_name=fn_name)
    return row(identifier, input_output=tests, solutions=[solution], source="codewars", **fields)


# Rules on form


ONES = ["1"] * 8


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"input_output": suite_json(["1"] * 7, ["1"] * 7)}, Rule.FEW_TESTS),
        ({"input_output": suite_json(ONES, ["1"] * 9)}, Rule.TYPES),
        ({"input_output": suite_json("12345678", "12345678")}, Rule.TYPES),
        ({"input_output": suite_json(["1"] * 7 + [1], ONES)}, Rule.TYPES),
        ({"input_output": suite_json(ONES, ["1"] * 7 + [None])}, Rule.TYPES),
        ({"input_output": suite_json(["1"] * 7 + ["\ud800"], ONES)}, Rule.TYPES),
        ({"input_output": json.dumps({"inputs": ONES})}, Rule.TYPES),
        *(({"input_output": text}, Rule.TYPES) for text in ("[]", "{")),
        ({"input_output": suite_json([[1]] * 7 + [1], [1] * 8, fn_name="f")}, Rule.TYPES),
        ({"input_output": suite_json([[1]] * 8, [1] * 8, fn_name="f(")}, Rule.TYPES),
        ({"question": STATEMENT + "see the Image below"}, Rule.IMAGE),
        ({"question": STATEMENT + "\n![](http://x/y.png)"}, Rule.IMAGE),
        ({"question": "a" * 99 + " -+*" * 100}, Rule.SHORT),
        # At the borders of the rules rows stay.
        ({"input_output": suite_json(ONES, ONES)}, None),
        ({"question": "a" * 100}, None),
        ({"question": STATEMENT + " ![](x)"}, None),
        ({"solutions": json.dumps([SQUARE]), "difficulty": None}, None),
    ],
)
def test_each_rule_drops_its_rows_and_no_other(changes, rule):
    read = read_row(row() | changes, TacoSettings())
    assert isinstance(read, Task) if rule is None else read is rule


def test_tests_that_are_nested_too_deep_to_read_drop_their_row():
    gc.collect()
    gc.disable()  # finalizers of other tests would fail where a row exhausts the stack
    try:
        assert read_row(row(input_output="[" * 100_000), TacoSettings()) is Rule.TYPES
    finally:
        gc.enable()


@given(st.lists(st.text(max_size=6), max_size=60), st.integers(8, 24))
@example(["x"] * 25, 20)
def test_the_cap_keeps_the_longest_and_shortest_inputs_in_their_order(inputs, most):
    indexes = capped_indices(inputs, most)
    assert indexes == sorted(set(indexes))
    assert len(indexes) == min(len(inputs), most)
    if len(inputs) <= most:
        return
    short, every = most // 4, sorted(map(len, inputs))
    assert sorted(len(inputs[index]) for index in indexes) == every[:short] + every[len(every) - (most - short) :]
    if every[0] == every[-1]:  # of equally long inputs the first count as longer
        assert indexes == [*range(most - short), *range(len(inputs) - short, len(inputs))]


@given(st.lists(st.integers(0, 3), min_size=8, max_size=20), st.data())
def test_public_tests_are_the_easiest_of_the_attempts(passes, data):
    inputs = data.draw(st.lists(st.text(max_size=4), min_size=len(passes), max_size=len(passes)))
    suite = TestSuite(tuple(inputs), tuple(inputs))
    public = easiest_indices(suite, 4, passes)
    hidden = [index for index in range(len(suite)) if index not in public]
    assert public == sorted(public)
    assert min(passes[index] for index in public) >= max(passes[index] for index in hidden)
    assert easiest_indices(suite, 4, [1] * len(suite)) == easiest_indices(suite, 4, None)
    # Without attempts the shortest inputs, and of equals the first.
    suite = TestSuite(("bb", "ccc", "a", "bb", "a", "bb"), ("",) * 6)
    assert easiest_indices(suite, 4, None) == [0, 2, 3, 4]


# Runs


NINE = [[[n, n + 1]] for n in range(9)]
SUMS = [2 * n + 1 for n in range(9)]
ADD = "def add(p): return sum(p)"
SOLUTION = "class Solution:\n    def add(self, p: List[int]) -> int:\n        return reduce(int.__add__, p)"
LOOK = "def look(d, x): return (tuple(d['k']), x, d['k'][0] / 4)"
LOOKED = [[{"k": [n, "a b"]}, None] for n in range(9)], [[[n, "a b"], None, n / 4] for n in range(9)]
PAIRS, TWO_LINES = [["2", str(n)] for n in range(9)], "n = int(input())\nprint(n)\nprint(int(input()))"
# Of each kept problem its second output, and the row.
SECOND_OUTPUTS = {
    "plain": ("9\n", row("plain", solutions=["print(", WRONG, SQUARE])),
    "long": ("36\n", row("long", tests=30)),
    "lines": ("2\n1", row("lines", input_output=suite_json(PAIRS, PAIRS), solutions=[TWO_LINES])),
    "bare": ("3", function_row("bare", "add", NINE, SUMS, ADD, starter_code="def add(p):")),
    "wrapped": ("3", function_row("wrapped", "add", NINE, [[n] for n in SUMS], ADD)),
    "meant": ("[3]", function_row("meant", "add", NINE, [[n] for n in SUMS], "def add(p): return [sum(p)]")),
    "leetcode": ("3", function_row("leetcode", "add", NINE, SUMS, SOLUTION)),
    "values": ('[[1, "a b"], null, 0.25]', function_row("values", "look", *LOOKED, LOOK)),
}
DROPPED = [
    row("unsolved", solutions=[WRONG, "x = ", "while True: pass"]),
    row("without solutions", solutions=[]),
    row("few", tests=7),
    row("plain", tests=12),
]


async def prepare(settings, judge=None):
    async with nullcontext(judge) if judge else LocalJudge(JudgeSettings(concurrency=1, cpu_seconds=1.0)) as used:
        return (await taco(settings, used)).summary


@pytest.mark.sandbox
async def test_rows_are_kept_as_their_solutions_are_judged_and_get_the_schema_of_taco_cobalt(tmp_path):
    rows = [*(row for _, row in SECOND_OUTPUTS.values()), *DROPPED]
    settings = TacoSettings(tmp_path / "out", write_lines(tmp_path / "taco.jsonl", rows), dev_size=2)
    summary = await prepare(settings)
    counts = {name.removeprefix("dropped: "): count for name, count in summary["rows"].items() if count}
    dropped = {Rule.UNSOLVED.value: 2, Rule.FEW_TESTS.value: 1, Rule.DUPLICATE.value: 1}
    assert counts == {"read": 12} | dropped | {"kept": 8, "of them called functions": 5}
    assert summary["splits"] == {"train": 6, "dev": 2}
    problems = [problem for name in ("train", "dev") for problem in load_problems(tmp_path / "out" / f"{name}.jsonl")]
    assert {problem.id: problem.tests.outputs[1] for problem in problems} == {
        name: out for name, (out, _) in SECOND_OUTPUTS.items()
    }
    fields = ["id", "difficulty", "question", "test_cases", "instruction", "public_test_cases", "hidden_test_cases"]
    for problem in problems:
        assert list(problem.record) == fields
        assert len(problem.public_tests) == 4 and len(problem.tests) <= 20
        public, hidden = map(problem.tests.positions_of, (problem.public_tests, problem.hidden_tests))
        assert sorted(public + hidden) == [*range(len(problem.tests))]
        assert hidden == sorted(hidden)
        assert problem.question in problem.instruction
        assert ("reads from standard input" in problem.instruction) == (problem.tests.fn_name is None)
        assert problem.tests.fn_name == problem.public_tests.fn_name == problem.hidden_tests.fn_name
    [bare] = [problem for problem in problems if problem.id == "bare"]
    assert bare.question.endswith("Starter code:\n```python\ndef add(p):\n```")


async def test_the_split_is_seeded_and_leaves_the_order_of_the_source(tmp_path):
    source = write_lines(tmp_path / "taco.jsonl", [row(number) for number in range(30)])
    dev = {}
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        await prepare(TacoSettings(folder, source, dev_size=10, seed=seed), FakeJudge(True))
        ids = [[problem.id for problem in load_problems(folder / f"{name}.jsonl")] for name in ("train", "dev")]
        assert sorted(ids[0] + ids[1]) == list(range(30))
        assert all(part == sorted(part) for part in ids)
        dev[seed] = ids[1]
    assert len(dev[1]) == 10
    assert dev[1] != dev[2]


async def test_recorded_attempts_choose_the_public_tests_of_the_problems_whose_tests_they_are_on(tmp_path):
    source, attempts = write_lines(tmp_path / "taco.jsonl", map(row, range(4))), tmp_path / "single.jsonl"
    settings = TacoSettings(tmp_path / "out", source, attempts_file=attempts, dev_size=0)
    tests = {"id": 2, "test_cases": row()["input_output"]}
    passing = [[index in easy for index in range(10)] for easy in ((1, 3, 5, 9), (1, 3, 5, 9, 0))]
    good = tests | {"exec_results": [{"passing": one, "feedback": [""] * 10} for one in passing]}
    other = {"id": 2, "test_cases": suite_json(["1"], ["1"]), "exec_results": [{"passing": [True], "feedback": [""]}]}
    for record, names in (
        (other, " 2 "),
        (good | {"id": "elsewhere"}, ""),
        (tests, "'exec_results'"),
        (good | {"exec_results": [3]}, "'exec_results.0'"),
        (tests | {"exec_results": [{"passing": [True]}]}, "each test"),
        (good | {"test_cases": 3}, "'test_cases'"),
    ):
        write_lines(attempts, [record])
        with pytest.raises(UserError, match=f"single.jsonl.*{names}"):
            await prepare(settings, FakeJudge(True))
        assert {path.name for path in (tmp_path / "out").glob("*.jsonl*")} == {"rows.jsonl"}
    write_lines(attempts, [good])
    summary = await prepare(settings, FakeJudge(None))
    assert summary["public tests"] == {"by recorded attempts": 1, "by length of the input": 3}
    inputs = {problem.id: problem.public_tests.inputs for problem in load_problems(tmp_path / "out" / "train.jsonl")}
    assert inputs[2] == ("3\n", "5\n", "7\n", "11\n")
    assert inputs[1] == ("2\n", "3\n", "4\n", "5\n")


async def test_rows_and_tests_left_out_are_counted_by_reason_with_their_first_ids(tmp_path):
    unreadable = [{"input_output": None}, {"input_output": float("nan")}, {"input_output": "["}]
    rows = [row(number) | fields for number, fields in enumerate([{}, {}, *unreadable, {"solutions": None}])]
    rows += [row(0), *(row(f"short {number}", question="Too short.") for number in range(7))]
    source = write_lines(tmp_path / "taco.jsonl", rows)
    summary = await prepare(TacoSettings(tmp_path / "out", source, dev_size=1, max_tests=8), FakeJudge(True))
    assert summary["rows"]["read"] == len(rows)
    assert summary["first left out"] == {
        Rule.TYPES.value: ["2", "3", "4"],
        Rule.UNSOLVED.value: ["5"],
        Rule.DUPLICATE.value: ["0"],
        Rule.SHORT.value: [f"short {number}" for number in range(5)],
        "tests over max_tests": ["0", "1"],
    }
    assert summary["rows"][f"dropped: {Rule.SHORT.value}"] == 7
    assert summary["tests"] == {"left out: tests over max_tests": 2 * (10 - 8)}
    assert read_summary(tmp_path / "out" / "train.jsonl") == summary


@pytest.mark.sandbox
async def test_the_papers_way_of_calling_loses_types_and_is_an_option(tmp_path):
    words = [["a", "b"], ["c d", "e"]] * 4
    rows = [
        function_row(1, "join", [["a", "b"]] * 8, [["ab"]] * 8, "def join(x, y): return x + y"),
        function_row(2, "join", words, [[x + y] for x, y in words], "def join(x, y): return x + y"),
        function_row(3, "add", [[1, 2]] * 8, [3] * 8, "def add(x, y): return x + y"),
    ]
    source = write_lines(tmp_path / "taco.jsonl", rows)
    called = await prepare(TacoSettings(tmp_path / "call", source, dev_size=0))
    assert called["rows"]["kept"] == 3
    paper = await prepare(TacoSettings(tmp_path / "paper", source, dev_size=0, function_tests="paper"))
    assert paper["rows"]["kept"] == 1
    [problem] = load_problems(tmp_path / "paper" / "train.jsonl")
    assert problem.tests.inputs[0] == "a b"
    assert problem.tests.fn_name is None
    assert "reads from standard input" in problem.instruction
