"""Open sentences of the pocket world: two fair readings, tests that tell them apart, exact ceilings, old worlds."""

import hashlib
import json
import random
from fractions import Fraction

import pytest
from test_pocket_problems import passes_all

from cobalt.pocket.__main__ import Arguments, main
from cobalt.pocket.ceilings import ceilings, repair_chances
from cobalt.pocket.dataset import draw_problems, to_records
from cobalt.pocket.open_sentences import FAMILIES
from cobalt.pocket.problems import draw_task, split_of
from cobalt.problems.problem import Problem
from cobalt.stage.errors import UserError

TURNS = 6


@pytest.fixture(scope="module")
def problems():
    return draw_problems("dev", 60, seed=0, open_share=0.7)


def solves(program, problem):
    return passes_all(program, problem.public) and passes_all(program, problem.hidden)


# Published worlds.


@pytest.mark.parametrize(
    ("open_share", "split", "count", "digest"),
    [
        (0.0, "train", 60, "871f30fb9751723e8bdd4163f2be570774a4c6f34f325b0af287d0dbd34cf6ab"),
        (0.0, "dev", 40, "66eaddbaff744fdeb1c381c029348d6469080cef1a1fe1965f2235c387110587"),
        (0.0, "test", 30, "eef64ca67bf50a832aa8a14b2f7ba19c96907552c3363448566c5aaa2b2cd657"),
        (0.5, "train", 30, "1822f6d0eb32e281ce1d378009f44333427569a364f3fb628d4c6aceb1c1b006"),
        (0.5, "dev", 20, "db2fd9de4f8a6ef5bd7223883954f3c477098c573b6122c2ef23ecc019461f91"),
        (0.5, "test", 20, "5eb8b29a1f9412761011f11aae0008479feb2802093d61789e303468814fb09b"),
    ],
)
def test_problems_are_those_of_published_worlds(open_share, split, count, digest):
    records = to_records(split, draw_problems(split, count, 0, open_share))
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    assert hashlib.sha256(lines.encode()).hexdigest() == digest


# Statements and tests.


def test_public_and_hidden_tests_each_refute_every_reading_but_the_one_that_is_meant(problems):
    refuted = 0
    for problem in problems:
        task, cases = problem.task, problem
        for reading in task.readings:
            program = task.program(reading)
            meant = reading == task.solution
            assert passes_all(program, cases.public) == passes_all(program, cases.hidden) == meant
            refuted += not meant
    assert refuted > 50


def test_two_readings_of_a_composition_lie_in_one_split():
    compositions = {
        split: {problem.task.composition for problem in draw_problems(split, 30, seed=2, open_share=0.8)}
        for split in ("train", "dev", "test")
    }
    for split, names in compositions.items():
        for composition in names:
            assert split_of(composition, 2) == split
    assert any("sort or sort down" in composition for names in compositions.values() for composition in names)
    rng = random.Random(2)
    for _ in range(200):
        task = draw_task(rng, "MEDIUM", 0.5)
        for name in task.composition:
            assert not any(name in family for family in FAMILIES)


def test_records_hold_the_program_of_each_reading(problems):
    for record, problem in zip(to_records("dev", problems), problems, strict=True):
        assert len(Problem.parse(record).public_tests) == 4
        if problem.task.open_slots:
            assert len(set(record["readings"])) == 2 ** len(problem.task.open_slots)
            assert record["solutions"][0] in record["readings"]
            assert [program for program in record["readings"] if solves(program, problem)] == record["solutions"]
        else:
            assert "readings" not in record


# Ceilings.


def test_ceilings_are_those_of_the_published_page_and_the_seeing_player_is_never_behind_the_blind_one():
    """Of a part of the problems of seed 0 whose ceilings docs/RESULTS.md has."""
    computed = ceilings(draw_problems("test", 20, 0, 0.5), TURNS)
    assert (
        hashlib.sha256(json.dumps(computed).encode()).hexdigest()
        == "4422ec49e89b101a8d331022b511085cf0a5cd25f72eae43e457c1a39a5eda56"
    )
    assert computed["single_turn"] == computed["repair"][0] == computed["blind"][0] < 0.7 < 0.95 < computed["repair"][2]
    assert all(seeing >= blind for seeing, blind in zip(computed["repair"], computed["blind"], strict=True))
    assert computed["repair"] == sorted(computed["repair"])


@pytest.mark.parametrize("readings", [1, 2, 4])
def test_a_repairer_tries_readings_by_lot_and_drops_those_that_a_test_refutes(problems, readings):
    """With k readings, of which each test refutes all but the right one, the first try is right 1 time in k."""
    problem = next(problem for problem in problems if len(problem.task.readings) == readings)
    chances = repair_chances(problem, TURNS)
    assert chances[0] == Fraction(1, readings) and chances[-1] == 1
    assert chances == sorted(chances)


# The world.


@pytest.mark.parametrize(("flag", "value"), [("open_share", 1.5), ("special_cases", -0.1), ("demonstrations", 599)])
def test_a_share_outside_its_range_is_refused_before_anything_is_made(tmp_path, flag, value):
    with pytest.raises(UserError, match=flag):
        main(Arguments(tmp_path / "world", **{flag: value}))
    assert not (tmp_path / "world").exists()
