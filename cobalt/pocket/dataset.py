"""The three problem files, as records in the TACO-Cobalt schema; the same seed and sizes give the same records."""

import random
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from cobalt.datasets.sources import problem_record
from cobalt.episode import load_prompts
from cobalt.pocket.cases import PocketProblem, draw_cases
from cobalt.pocket.problems import STEPS_OF, Difficulty, Split, Task, draw_task, split_of
from cobalt.problems.problem import TestSuite

SIZES: dict[Split, int] = {"train": 600, "dev": 400, "test": 100}
PROMPTS = "pocket"


def draw_problems(split: Split, count: int, seed: int, open_share: float = 0.0) -> list[PocketProblem]:
    """Draw `count` problems of a split, cycling through the difficulties, no statement twice.

    Problems of one split may share a composition; problems of two splits never do. What an open sentence means
    (`open_share` as for `draw_task`) is decided by a fair coin that nothing else in the problem depends on: a statement
    is posed only if it is worth posing in each of its readings.
    """
    rng = random.Random(f"pocket problems {split} {seed}")
    difficulties: tuple[Difficulty, ...] = tuple(STEPS_OF)
    problems: list[PocketProblem] = []
    seen: set[str] = set()
    while len(problems) < count:
        task = draw_task(rng, difficulties[len(problems) % len(difficulties)], open_share)
        if task.statement in seen or split_of(task.composition, seed) != split:
            continue
        meanings = _worth_posing(task, rng)
        if meanings:
            seen.add(task.statement)
            problems.append(meanings[0] if len(meanings) == 1 else rng.choice(meanings))
    return problems


def _worth_posing(task: Task, rng: random.Random) -> list[PocketProblem]:
    """A problem for each reading of the statement, or none unless each reading makes one."""
    drawn = (draw_cases(task.meaning(reading), rng) for reading in task.readings)
    problems = list(takewhile(bool, drawn))  # after one that is not, nothing more is drawn
    return [one for one in problems if one] if len(problems) == len(task.readings) else []


def to_records(split: Split, problems: Sequence[PocketProblem]) -> list[dict[str, Any]]:
    """The lines of a problem file, with ids such as `pocket-dev-0007`.

    `solutions` holds the reference program. `readings` holds a program for each reading of the statement, the reference
    program among them, where there are several.
    """
    return [_record(problem, f"pocket-{split}-{number:04d}") for number, problem in enumerate(problems)]


def _record(problem: PocketProblem, identifier: str) -> dict[str, Any]:
    task, public, hidden = problem.task, problem.public, problem.hidden
    every = TestSuite(public.inputs + hidden.inputs, public.outputs + hidden.outputs)
    instruction = load_prompts(PROMPTS).first_turn(task.statement)
    tests = (every, public, hidden)
    record = problem_record(identifier, task.statement, instruction, *tests, difficulty=task.difficulty)
    record |= {"composition": list(task.composition), "solutions": [task.program(task.solution)]}
    if task.open_slots:
        record["readings"] = [task.program(reading) for reading in task.readings]
    return record
