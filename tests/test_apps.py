"""APPS and APPS+ as problems: both kinds of tests, their two meanings, difficulties, and rows without tests."""

import json

import pytest
from support import RefusingJudge, write_lines

from cobalt.datasets.apps import AppsSettings, preprocess_apps, read_apps, read_apps_plus
from cobalt.errors import UserError
from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.problem import TestSuite, load_problems


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
LIST_SOLUTION = json.dumps(["def square(x):\n    return [x * x]"])


class TastefulJudge(RefusingJudge):
    """Accepts programs on the suites whose first expected output it likes."""

    def __init__(self, liked):
        self.liked, self.asked = liked, []

    async def judge(self, code, suite, *, stop_at_first_failure=False):
        self.asked.append((code, suite))
        if suite.outputs[0] != self.liked:
            return await super().judge(code, suite)
        return ExecResult([True] * len(suite), [""] * len(suite), [Verdict(VerdictKind.PASSED)] * len(suite))


async def converted(tmp_path, rows, judge=None, **settings):
    source = tmp_path / ("rows.json" if settings.get("data_set") == "apps_plus" else "rows.jsonl")
    if source.suffix == ".json":
        source.write_text(json.dumps(rows))
    else:
        write_lines(source, rows)
    output = tmp_path / "o.jsonl"
    summary = await preprocess_apps(AppsSettings(output, source, **settings), judge or RefusingJudge())
    return load_problems(output), summary


async def test_programs_and_functions_become_problems_with_hidden_tests_only(tmp_path):
    rows = [row(0), row(1, "competition", CALL, starter_code="def square(x):")]
    [program, function], summary = await converted(tmp_path, rows)
    assert program.tests == TestSuite(("2\n", "3\n"), ("4\n", "9\n"))
    assert len(program.public_tests) == 0
    assert program.hidden_tests == program.tests
    assert (function.id, function.tests.fn_name) == ("APPS/1", "square")
    assert "def square(x):" in function.question
    assert "`square`" in function.instruction
    assert summary["kept"] == {"introductory": 1, "interview": 0, "competition": 1}


async def test_recorded_solutions_decide_what_tests_mean_and_the_likelier_reading_holds_without_them(tmp_path):
    judge = TastefulJudge("[4]")
    [problem], _ = await converted(tmp_path, [row(0, tests=CALL, solutions=LIST_SOLUTION)], judge)
    assert problem.tests.outputs == ("[4]", "[9]")
    assert [suite.outputs[0] for _, suite in judge.asked] == ["4", "[4]"]
    for name, fields in {"none": {"solutions": ""}, "refused": {"solutions": LIST_SOLUTION}}.items():
        (tmp_path / name).mkdir()
        [problem], _ = await converted(tmp_path / name, [row(0, tests=CALL, **fields)])
        assert problem.tests.outputs == ("4", "9")


async def test_tests_with_one_meaning_are_not_judged(tmp_path):
    judge = TastefulJudge("4")
    await converted(tmp_path, [row(0)], judge)
    assert judge.asked == []


async def test_rows_of_other_difficulties_and_without_tests_are_left_out_and_counted(tmp_path):
    rows = [row(0), row(1, "interview"), row(2, "interview", ""), row(3, tests={"inputs": [], "outputs": []})]
    problems, summary = await converted(tmp_path, rows, difficulty=("interview",))
    assert [problem.id for problem in problems] == ["APPS/1"]
    assert summary["rows"]["read"] == 4
    assert sum(summary["left out"].values()) == 3


async def test_half_of_a_surrogate_pair_leaves_a_row_out_or_refuses_the_file_of_apps_plus(tmp_path):
    problems, summary = await converted(tmp_path, [row(0), row(1, tests={"inputs": ["\ud800"], "outputs": ["1"]})])
    assert [problem.id for problem in problems] == ["APPS/0"]
    assert sum(summary["left out"].values()) == 1
    (tmp_path / "plus").mkdir()
    with pytest.raises(UserError, match=r"rows\.json: .*surrogate"):
        await converted(tmp_path / "plus", [PLUS | {"inputs": ["\ud800"]}], data_set="apps_plus")


async def test_a_stopped_run_continues_and_a_finished_one_is_left_as_it_is(tmp_path):
    rows = [row(0), row(1, tests=CALL, solutions=LIST_SOLUTION)]

    class Broken(RefusingJudge):
        async def judge(self, code, suite, *, stop_at_first_failure=False):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await converted(tmp_path, rows, Broken())
    assert [problem.id for problem in load_problems(tmp_path / "o.jsonl")] == ["APPS/0"]
    problems, summary = await converted(tmp_path, rows)
    assert [problem.id for problem in problems] == ["APPS/0", "APPS/1"]
    assert (await converted(tmp_path, rows, Broken()))[1] == summary
    with pytest.raises(UserError, match="difficulty"):
        await converted(tmp_path, rows, difficulty=("interview",))


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


@pytest.mark.parametrize("fields", [{"question": None}, {"difficulty": 3}, {"problem_id": None}, {"input_output": {}}])
async def test_malformed_rows_are_refused_by_place_and_field(tmp_path, fields):
    with pytest.raises(UserError, match=rf"rows\.jsonl, line 2: field '{next(iter(fields))}'"):
        await converted(tmp_path, [row(0), row(1, **fields)])


@pytest.mark.parametrize("again", [row(0), row(0, "interview"), row(0, tests="")])
async def test_an_id_that_occurs_twice_is_refused_also_by_a_run_that_continues(tmp_path, again):
    for _ in range(2):
        with pytest.raises(UserError, match=r"line 3: the id 'APPS/0' is already used by .*line 1"):
            await converted(tmp_path, [row(0), row(1), again], difficulty=("introductory",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "not a JSON array of objects"),
        ("{}", "not a JSON array of objects"),
        ("[", "not valid JSON"),
        ('[{"question": "x"}]', "item 0: field 'starter_code'"),
    ],
)
async def test_a_file_of_apps_plus_that_is_not_an_array_of_items_is_refused(tmp_path, text, says):
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(UserError, match=rf"rows\.json.*{says}"):
        await preprocess_apps(AppsSettings(tmp_path / "o.jsonl", tmp_path / "rows.json", "apps_plus"), RefusingJudge())


def test_apps_plus_needs_a_file(tmp_path):
    with pytest.raises(UserError, match="--input_file"):
        AppsSettings(tmp_path / "o.jsonl", data_set="apps_plus")


def test_solutions_may_be_a_list_or_its_json(tmp_path):
    assert read_apps(row(0)).programs == read_apps(row(0, solutions=["print(int(input()) ** 2)"])).programs
    assert read_apps(row(0, solutions="")).programs == ()
