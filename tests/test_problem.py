"""Problems: the TACO-Cobalt schema is read as it is, and every malformed file is refused by line and field."""

import json

import pytest
from support import write_lines

from cobalt.datasets.split_tests import split_problem_file
from cobalt.problems.problem import Problem, TestSuite, load_problems
from cobalt.stage.errors import UserError

TESTS = json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["1", "4"]})
CALLS = {"inputs": ["[1]\n"], "outputs": ["1"], "fn_name": "f"}
RECORD = {"id": 0, "difficulty": "EASY", "question": "Square it.", "test_cases": TESTS}


def test_released_schema_loads_with_tests_as_json_strings(tmp_path):
    parts = [TestSuite(("1\n",), ("1",)), TestSuite(("2\n",), ("4",))]
    record = RECORD | {"instruction": "Please square it.", "some_later_field": [1, 2]}
    record |= {f"{kind}_test_cases": part.to_json() for kind, part in zip(("public", "hidden"), parts, strict=True)}
    [problem] = load_problems(write_lines(tmp_path / "p.jsonl", [record]))
    assert (problem.id, problem.instruction) == (0, "Please square it.")
    assert problem.tests == TestSuite(("1\n", "2\n"), ("1", "4"))
    assert [problem.public_tests, problem.hidden_tests] == parts
    assert problem.record["some_later_field"] == [1, 2]


@pytest.mark.parametrize("identifier", [0, "", -1, "a"])
def test_without_a_split_every_test_is_hidden_and_none_public(tmp_path, identifier):
    [problem] = load_problems(write_lines(tmp_path / "p.jsonl", [RECORD | {"id": identifier}]))
    assert (problem.id, problem.instruction, len(problem.public_tests)) == (identifier, None, 0)
    assert problem.hidden_tests == problem.tests
    called = {"test_cases": CALLS, "public_test_cases": CALLS | {"inputs": [], "outputs": []}}
    assert Problem.parse(RECORD | called).public_tests.fn_name == "f"


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({key: value for key, value in RECORD.items() if key != "id"}, "'id'"),
        ({"id": 1, "test_cases": TESTS}, "'question'"),
        (RECORD | {"id": True}, "'id'"),
        (RECORD | {"id": 1, "test_cases": {"inputs": [], "outputs": []}}, "'test_cases'"),
        (RECORD | {"id": 1, "test_cases": {"inputs": ["1"], "outputs": []}}, "'test_cases': .*1.*0"),
        (RECORD | {"id": 1, "test_cases": {"inputs": [1], "outputs": ["1"]}}, "'test_cases'.*'inputs.0'"),
        (RECORD | {"id": 1, "test_cases": "{"}, "'test_cases'"),
        *((RECORD | {"id": 1, "test_cases": CALLS | {"asserts": value}}, "asserts") for value in (1, "yes")),
        *((RECORD | {"id": 1, "test_cases": CALLS | {"fn_name": name}}, "fn_name") for name in (3, "f(); evil", "")),
        (RECORD | {"id": 1, "test_cases": json.loads(TESTS) | {"asserts": True}}, "asserts"),
        (RECORD | {"id": 1, "hidden_test_cases": {"inputs": [], "outputs": []}}, "'hidden_test_cases'"),
        (RECORD | {"id": 1, "instruction": 3}, "'instruction'"),
        (RECORD, "id 0"),
    ],
)
def test_a_malformed_line_is_named_with_its_field(tmp_path, bad, named):
    with pytest.raises(UserError, match=f"p.jsonl, line 2: .*{named}"):
        load_problems(write_lines(tmp_path / "p.jsonl", [RECORD, bad]))


@pytest.mark.parametrize("field", ["test_cases", "public_test_cases", "hidden_test_cases"])
@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [("'abc'\n", "3"), ("1\n", "True"), ("(1, 2)", "1"), ("1, 2", "3"), ("x=1", "3"), ("[1,\n2]", "1"), ("1", "")],
)
def test_tests_of_functions_that_are_not_json_are_refused_by_line_and_field(tmp_path, field, as_text, inputs, outputs):
    tests = CALLS | {"inputs": [*CALLS["inputs"], inputs], "outputs": [*CALLS["outputs"], outputs]}
    record = RECORD | {"test_cases": CALLS, field: json.dumps(tests) if as_text else tests}
    with pytest.raises(UserError, match=rf"line 1: .*'{field}': .*'f'"):
        load_problems(write_lines(tmp_path / "p.jsonl", [record]))
    with pytest.raises(UserError, match="p.jsonl"):
        split_problem_file(tmp_path / "p.jsonl", tmp_path / "split.jsonl")


@pytest.mark.parametrize("arguments", ['"a\u2028b"\n', '["a\u2029", "\x85"]\n\n2\n'])
def test_arguments_of_functions_end_at_newlines_alone(arguments):
    assert TestSuite((arguments,), ("1",), "f").inputs == (arguments,)


@pytest.mark.parametrize(
    "nothing", [None, float("nan"), "null", {"inputs": None, "outputs": None, "fn_name": None, "asserts": None}]
)
def test_fields_without_values_are_missing(tmp_path, nothing):
    fields = {"public_test_cases": nothing, "hidden_test_cases": nothing, "perturbed_public_test_cases": nothing}
    tests = json.loads(TESTS) | {"fn_name": None, "asserts": None}
    record = RECORD | {"question": None, "instruction": "Square it.", "test_cases": tests} | fields
    [problem] = load_problems(write_lines(tmp_path / "p.jsonl", [record]))
    assert (problem.question, len(problem.public_tests), problem.perturbed_tests()) == ("Square it.", 0, None)
    assert problem.hidden_tests == problem.tests
    split_problem_file(tmp_path / "p.jsonl", tmp_path / "split.jsonl", 1)
    [split] = load_problems(tmp_path / "split.jsonl")
    assert (len(split.public_tests), len(split.hidden_tests)) == (1, 1)
    assert "NaN" not in (tmp_path / "split.jsonl").read_text()


def test_columns_that_only_some_rows_of_a_table_fill_are_missing_in_the_others(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    suite = {"inputs": ["1"], "outputs": ["1"]}
    called = suite | {"fn_name": "f", "asserts": False}
    rows = [
        {"id": 0, "question": "q", "test_cases": called, "public_test_cases": suite},
        {"id": 1, "instruction": "i", "test_cases": suite, "weight": 1.5, "public_test_cases": None},
        {"id": 2, "question": "q", "test_cases": suite, "weight": float("nan"), "hidden_test_cases": suite},
    ]
    columns = {name: [row.get(name) for row in rows] for row in rows for name in row}
    parquet.write_table(pyarrow.table(columns), tmp_path / "p.parquet")
    problems = load_problems(tmp_path / "p.parquet")
    assert [problem.tests.fn_name for problem in problems] == ["f", None, None]
    assert [len(problem.public_tests) for problem in problems] == [1, 0, 0]
    assert [problem.record["weight"] for problem in problems] == [None, 1.5, None]
