"""The pocket world's problems: schema, splits, determinism, and tests that tell mistakes apart."""

from collections import Counter

import pytest

from cobalt.episode import load_prompts
from cobalt.pocket.cases import PUBLIC_TESTS, TESTS, passes
from cobalt.pocket.dataset import SIZES, draw_problems, to_records
from cobalt.pocket.execution import run_program
from cobalt.pocket.problems import STEPS_OF, Split
from cobalt.problems.problem import Problem

COUNT = 45


def passes_all(program, suite):
    return all(
        passes(run_program(program, stdin), expected)
        for stdin, expected in zip(suite.inputs, suite.outputs, strict=True)
    )


@pytest.fixture(scope="module")
def problems():
    return {split: draw_problems(split, COUNT, seed=0) for split in SIZES}


@pytest.fixture(scope="module")
def records(problems):
    return {split: to_records(split, drawn) for split, drawn in problems.items()}


def test_records_are_problems_with_four_public_tests(records):
    for split, lines in records.items():
        for number, record in enumerate(lines):
            problem = Problem.parse(record)
            assert problem.id == f"pocket-{split}-{number:04d}"
            assert len(problem.public_tests) == PUBLIC_TESTS == 4
            assert 8 <= TESTS[0] <= len(problem.tests) <= TESTS[1] <= 20
            assert problem.tests.inputs == problem.public_tests.inputs + problem.hidden_tests.inputs
            assert problem.tests.outputs == problem.public_tests.outputs + problem.hidden_tests.outputs
            assert len(set(problem.tests.inputs)) == len(problem.tests)
            assert problem.instruction == load_prompts("pocket").first_turn(problem.question)
        levels = Counter(line["difficulty"] for line in lines)
        assert levels == dict.fromkeys(STEPS_OF, COUNT // 3)


def test_compositions_are_disjoint_and_no_statement_occurs_twice(records):
    compositions = [{tuple(line["composition"]) for line in lines} for lines in records.values()]
    assert len(set.union(*compositions)) == sum(map(len, compositions))
    for lines in records.values():
        assert len({line["question"] for line in lines}) == COUNT


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_every_confusion_fails_a_hidden_test(problems, split: Split):
    caught_in_public = []
    for problem in problems[split]:
        for expressions in problem.task.confusions():
            program = problem.task.program(expressions)
            assert not passes_all(program, problem.hidden), (problem.task.statement, program)
            caught_in_public.append(not passes_all(program, problem.public))
    assert sum(caught_in_public) / len(caught_in_public) > 0.9
