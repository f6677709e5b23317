"""APPS and APPS+ as problems: both kinds of tests, their two meanings, difficulties, and rows without tests."""

import json

import pytest
from support import FakeJudge

from cobalt.datasets.apps import AppsSettings, apps, read_apps_plus
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.stage.errors import UserError


def row(number, difficulty="introductory", tests=None, **fields):
    """A row in the schema of APPS: print the square of a number."""
    tests = {"inputs": ["2\n", "3\n"], "outputs": ["4\n", "9\n"]} if tests is None else tests
    return {
        "problem_id": number,
        "question": f"Print a square ({number}).",
        "solutions": json.dumps(["print(int(input()) ** 2)"]),
        "input_output": json.dumps(tests) if tests != "" else "",
        "difficulty": difficulty,
        "url": "",
        "starter_code": "",
    } | fields


CALL = {"fn_name": "square", "inputs": [[2], [3]], "outputs": [[4], [9]]}
LIST_SOLUTION = ["def square(x):\n    return [x * x]"]  # in the data set their JSON, in copies of it the list


async def converted(tmp_path, rows, judge=None, **settings):
    source, output = tmp_path / "rows.json", tmp_path / "o.jsonl"
    source.write_text(json.dumps(rows))
    summary = (await apps(AppsSettings(output, source, **settings), judge or FakeJudge())).summary
    return load_problems(output), summary


async def test_programs_and_functions_become_problems_with_hidden_tests_only(tmp_path):
    lists = {"inputs": [["2", "5 6"]], "outputs": [["11"]]}  # on standard input, where they are lines
    rows = [row(0), row(1, "competition", CALL, starter_code="def square(x):"), row(2, tests=lists, solutions="")]
    [program, function, lines], summary = await converted(tmp_path, rows)
    assert program.tests == TestSuite(("2\n", "3\n"), ("4\n", "9\n"))
    assert lines.tests == TestSuite(("2\n5 6",), ("11",))
    assert len(program.public_tests) == 0
    assert program.hidden_tests == program.tests
    assert (function.id, function.tests.fn_name) == ("APPS/1", "square")
    assert "def square(x):" in function.question
    assert "`square`" in function.instruction
    assert summary["kept"] == {"introductory": 2, "interview": 0, "competition": 1}


async def test_recorded_solutions_decide_what_tests_mean_and_the_likelier_reading_holds_without_them(tmp_path):
    rows = [row(0), row(1, tests=CALL, solutions=LIST_SOLUTION), row(2, tests=CALL, solutions="")]
    judge = FakeJudge(lambda _, suite: suite.outputs[0] == "[4]")
    [_, decided, assumed], _ = await converted(tmp_path, rows, judge)
    assert (decided.tests.outputs, assumed.tests.outputs) == (("[4]", "[9]"), ("4", "9"))
    assert [suite.outputs[0] for _, suite in judge.asked] == ["4", "[4]"]  # not of tests with one meaning
    (tmp_path / "refused").mkdir()
    [problem], _ = await converted(tmp_path / "refused", rows[1:2])
    assert problem.tests.outputs == ("4", "9")


async def test_rows_of_other_difficulties_or_without_tests_are_left_out_and_counted(tmp_path):
    """Null and NaN, as tables have them, stand for no value: such a difficulty is unknown, and its row is kept."""
    nothing = float("nan")
    rows = [row(0), row(1, "interview"), row(2, "interview", ""), row(3, "interview", {"inputs": [], "outputs": []})]
    rows += [row(4, "interview", input_output=value) for value in (None, nothing)]
    rows[-1]["problem_id"] = 5
    problems, summary = await converted(tmp_path, rows, difficulty=("interview",))
    assert [problem.id for problem in problems] == ["APPS/1"]
    assert summary["rows"]["read"] == 6
    without = ["APPS/2", "APPS/3", "APPS/4", "APPS/5"]
    assert summary["first left out"] == {"another difficulty": ["APPS/0"], "no tests that can be read": without}
    (tmp_path / "unknown").mkdir()
    rows = [row(0, None), row(1, nothing, CALL, solutions=None, starter_code=nothing)]
    problems, summary = await converted(tmp_path / "unknown", rows)
    assert [(problem.id, problem.record["difficulty"]) for problem in problems] == [("APPS/0", None), ("APPS/1", None)]
    assert summary["kept"]["unknown difficulty"] == 2
    assert "NaN" not in (tmp_path / "unknown" / "o.jsonl").read_text()


PLUS = {
    "question": "Print a square.",
    "difficulty": "interview",
    "starter_code": "def solve():",
    "canonical_solution": "def solve():\n    print(int(input()) ** 2)",
    "inputs": ["2\n"],
    "outputs": ["4\n"],
}


async def test_items_of_apps_plus_read_standard_input_or_call_the_function_of_the_starter_code(tmp_path):
    call = PLUS | {"starter_code": "def square(x):", "inputs": [[2]], "outputs": [4]}
    [program, function], _ = await converted(tmp_path, [PLUS, call], data_set="apps_plus")
    assert program.tests == TestSuite(("2\n",), ("4\n",))
    assert (function.id, function.tests.fn_name, function.tests.outputs) == ("APPS+/1", "square", ("4",))
    assert read_apps_plus(PLUS | {"problem_id": 0}).programs[0].endswith("solve()\n")


@pytest.mark.parametrize("again", [row(0), row(0, "interview"), row(0, tests="")])
async def test_an_id_that_occurs_twice_is_that_of_the_first_row_also_in_a_run_that_continues(tmp_path, again):
    for _ in range(2):
        problems, summary = await converted(tmp_path, [row(0), row(1), again], difficulty=("introductory",))
        assert [problem.id for problem in problems] == ["APPS/0", "APPS/1"]
        assert summary["first left out"] == {"an id that an earlier row has": ["APPS/0"]}


NUMBERED = [{"1": 10, "2": 20}]
NESTED = [[{"1": 10}, {"-2": 20}]]


@pytest.mark.parametrize(
    ("arguments", "solution", "alone"),
    [
        (NUMBERED, "return sorted(x) == [1, 2]", "f({1: 10, 2: 20})"),
        (NUMBERED, "return sorted(x) == ['1', '2']", "f({1: 10, 2: 20})"),
        (NESTED, "return [*x[0], *x[1]] == [1, -2]", '[{"1": 10}, {"-2": 20}]\n'),
        (NESTED, "return [*x[0], *x[1]] == ['1', '-2']", '[{"1": 10}, {"-2": 20}]\n'),
        ([{"1": {"2": 3}}], "return x == {1: {'2': 3}}", "f({1: {'2': 3}})"),
        ([{"1": {"2": 3}}], "return x == {1: {2: 3}}", "f({1: {'2': 3}})"),
        ([{"a": 1}], "return x == {'a': 1}", '{"a": 1}\n'),
    ],
)
@pytest.mark.parametrize("data_set", ["apps", "apps_plus"])
async def test_solutions_decide_whether_keys_are_whole_numbers_and_the_grader_without_them(
    tmp_path, data_set, arguments, solution, alone
):
    program = f"def f(x):\n    {solution}\n"
    plus = PLUS | {"starter_code": "def f(x):", "inputs": [arguments], "outputs": [True]}
    tests = {"fn_name": "f", "inputs": [arguments], "outputs": [True]}
    rows = {
        "apps": [row(0, tests=tests, solutions=json.dumps([program])), row(1, tests=tests, solutions="")],
        "apps_plus": [plus | {"canonical_solution": program}, plus | {"canonical_solution": None}],
    }
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        [decided, assumed], _ = await converted(tmp_path, rows[data_set], judge, data_set=data_set)
        assert (await judge.judge(program, decided.tests)).all_passed
    assert assumed.tests.inputs == (alone,)


async def test_expected_dictionaries_are_compared_as_with_arguments_of_json(tmp_path):
    """Their keys may be numbers or texts, and their values tuples or lists, in what a program returns."""
    tests = {"fn_name": "f", "inputs": [[{"3": 4}]], "outputs": [{"1": [2, {"5": 6.0}]}]}
    [problem], _ = await converted(tmp_path, [row(0, tests=tests, solutions="")])
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        for value, passes in (("{1: (2, {5: 6})}", True), ("{'1': [2, {'5': 6}]}", True), ("{1: [2]}", False)):
            result = await judge.judge(f"def f(x):\n    return {value} if x == {{3: 4}} else None", problem.tests)
            assert result.all_passed is passes, value


@pytest.mark.parametrize(
    ("text", "says"), [("[1]", "item 1"), ("{}", "inputs"), ("[", "one array"), ('[{"question": 1}]', "item 1.*inputs")]
)
async def test_a_file_of_apps_plus_that_is_not_an_array_of_items_is_refused(tmp_path, text, says):
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(UserError, match=rf"rows\.json.*{says}"):
        await apps(AppsSettings(tmp_path / "o.jsonl", tmp_path / "rows.json", "apps_plus"), FakeJudge())
    with pytest.raises(UserError, match="--input_file"):
        AppsSettings(tmp_path / "o.jsonl", data_set="apps_plus")
