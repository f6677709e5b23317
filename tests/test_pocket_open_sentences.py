"""Open sentences of the pocket world: two fair readings, tests that tell them apart, exact ceilings, old worlds."""

import hashlib
import json
import random
from collections import Counter
from fractions import Fraction
from itertools import permutations

import pytest
from test_pocket_problems import passes_all

from cobalt.pocket.__main__ import Arguments, main
from cobalt.pocket.cases import passes
from cobalt.pocket.ceilings import ceilings, repair_chances
from cobalt.pocket.dataset import draw_problems, to_records
from cobalt.pocket.execution import run_program
from cobalt.pocket.open_sentences import FAMILIES, OPEN_SENTENCES
from cobalt.pocket.operations import PRINTERS, STEPS
from cobalt.pocket.problems import draw_task, split_of
from cobalt.problems.problem import Problem
from cobalt.stage.errors import UserError

OPERATIONS = {operation.name: operation for operation in (*STEPS, *PRINTERS)}
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


# The table.


def test_an_open_sentence_has_the_same_two_readings_whichever_operation_it_asks_for():
    for sentence, names in OPEN_SENTENCES.items():
        readings = [{OPERATIONS[name].right, OPERATIONS[name].wrong} for name in names]
        assert all(item == readings[0] and len(item) == 2 for item in readings), sentence
        assert len({OPERATIONS[name].kind for name in names}) == 1
        assert len({OPERATIONS[name].constants for name in names}) == 1
        assert not any(sentence == phrasing.text for row in OPERATIONS.values() for phrasing in row.phrasings)


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


def brute_force_repair(problem, turns):
    """The mean over all orders in which the readings can be tried: those that a test seen has refuted are skipped."""
    public = problem.public
    programs = [problem.task.program(reading) for reading in problem.task.readings]
    orders = list(permutations(programs))
    solved = [0] * turns
    for order in orders:
        seen, turn = [], 0
        for program in order:
            outputs = [run_program(program, stdin) for stdin, _ in seen]
            if turn == turns or not all(
                outcome.stderr is None and (expected is None or passes(outcome, expected))
                for outcome, (_, expected) in zip(outputs, seen, strict=True)
            ):
                continue
            failed = [
                (stdin, None if run_program(program, stdin).stderr else expected)
                for stdin, expected in zip(public.inputs, public.outputs, strict=True)
                if not passes(run_program(program, stdin), expected)
            ]
            if not failed:
                for later in range(turn, turns):
                    solved[later] += solves(program, problem)
                break
            seen.append(failed[0])
            turn += 1
    return [Fraction(count, len(orders)) for count in solved]


def test_ceilings_are_those_of_all_orders_of_trying_and_of_the_mean_over_readings(problems):
    small = [problem for problem in problems if len(problem.task.open_slots) <= 2]
    assert sum(len(problem.task.open_slots) == 2 for problem in small) > 5
    chances = [repair_chances(problem, TURNS) for problem in small]
    assert chances == [brute_force_repair(problem, TURNS) for problem in small]
    computed = ceilings(small, TURNS)
    assert computed["repair"] == pytest.approx([sum(column) / len(small) for column in zip(*chances, strict=True)])
    programs = [[problem.task.program(reading) for reading in problem.task.readings] for problem in small]
    shares = [sum(solves(p, problem) for p in own) / len(own) for own, problem in zip(programs, small, strict=True)]
    assert computed["single_turn"] == pytest.approx(sum(shares) / len(shares), abs=1e-6)
    slots = Counter(str(len(problem.task.open_slots)) for problem in small)
    assert (computed["problems"], computed["open_slots"]) == (len(small), slots)


def test_a_repairer_reaches_everything_within_a_few_turns_and_none_falls_behind_a_blind_one(problems):
    computed = ceilings(problems, TURNS)
    assert computed["repair"][0] == computed["blind"][0] < 0.7
    assert computed["repair"][2] > 0.95
    assert all(seeing >= blind for seeing, blind in zip(computed["repair"], computed["blind"], strict=True))
    assert computed["repair"] == sorted(computed["repair"])


# The world.


@pytest.mark.parametrize(("flag", "value"), [("open_share", 1.5), ("special_cases", -0.1), ("demonstrations", 599)])
def test_a_share_outside_its_range_is_refused_before_anything_is_made(tmp_path, flag, value):
    with pytest.raises(UserError, match=flag):
        main(Arguments(tmp_path / "world", **{flag: value}))
    assert not (tmp_path / "world").exists()
