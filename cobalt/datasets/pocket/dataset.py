"""The three problem files, as records in the TACO-Cobalt schema.

The same seed and sizes give the same records. Nothing is written here; `world` writes the files.
"""

import random
from dataclasses import dataclass
from typing import Any

from cobalt.conversation import load_prompts
from cobalt.datasets.pocket.cases import Cases, draw_cases
from cobalt.datasets.pocket.problems import STEPS_OF, Difficulty, Split, Task, draw_task, split_of
from cobalt.problem import TestSuite

SIZES: dict[Split, int] = {"train": 600, "dev": 400, "test": 100}
PROMPTS = "pocket"


@dataclass(frozen=True, slots=True)
class PocketProblem:
    """A task with its tests."""

    task: Task
    cases: Cases


def draw_problems(split: Split, count: int, seed: int) -> list[PocketProblem]:
    """Draw `count` problems of a split, cycling through the difficulties, no statement twice.

    Problems of one split may share a composition; problems of two splits never do.
    """
    rng = random.Random(f"pocket problems {split} {seed}")
    difficulties: tuple[Difficulty, ...] = tuple(STEPS_OF)
    problems: list[PocketProblem] = []
    seen: set[str] = set()
    while len(problems) < count:
        task = draw_task(rng, difficulties[len(problems) % len(difficulties)])
        if task.statement in seen or split_of(task.composition, seed) != split:
            continue
        cases = draw_cases(task, rng)
        if cases is not None:
            seen.add(task.statement)
            problems.append(PocketProblem(task, cases))
    return problems


def to_record(problem: PocketProblem, identifier: str) -> dict[str, Any]:
    """One line of a problem file; `solutions` holds the reference program."""
    task, cases = problem.task, problem.cases
    whole = TestSuite(cases.public.inputs + cases.hidden.inputs, cases.public.outputs + cases.hidden.outputs)
    return {
        "id": identifier,
        "difficulty": task.difficulty,
        "question": task.statement,
        "instruction": load_prompts(PROMPTS).first_turn(task.statement),
        "test_cases": whole.to_json(),
        "public_test_cases": cases.public.to_json(),
        "hidden_test_cases": cases.hidden.to_json(),
        "composition": list(task.composition),
        "solutions": [task.program(task.solution)],
    }


def draw_records(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """The records of a problem file, with ids such as `pocket-dev-0007`."""
    problems = draw_problems(split, count, seed)
    return [to_record(problem, f"pocket-{split}-{number:04d}") for number, problem in enumerate(problems)]
