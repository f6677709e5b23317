"""Tests for a task: inputs on which its solution differs from every plausible confusion of it.

`draw_cases` makes a pool of inputs, runs the solution and all its confusions on them, and picks tests so that each
confusion fails some. A task in which a confusion makes no difference (such as sorting before a sum) gets no tests.
"""

import random
from dataclasses import dataclass

from cobalt.pocket.execution import Outcome, run_program
from cobalt.pocket.problems import Task
from cobalt.problems.problem import TestSuite

PUBLIC_TESTS = 4
TESTS = (8, 12)
"""The least and the largest number of tests of a problem, the public ones among them."""

_POOL = 40
_LEAST_FAILING = 3
_LONGEST_OUTPUT = 40


@dataclass(frozen=True, slots=True)
class PocketProblem:
    """A task with its public and hidden tests."""

    task: Task
    public: TestSuite
    hidden: TestSuite


def draw_cases(task: Task, rng: random.Random) -> PocketProblem | None:
    """`task` with its tests, or None when no choice of tests makes it worth posing.

    Every confusion (`Task.confusions`) fails at least one hidden test, and at least one public test unless four
    are too few for all of them. Every reading of the statement but the solution fails at least one hidden and one
    public test: the public tests tell what an open sentence means.
    """
    pool = _draw_pool(task, rng, _POOL)
    inputs = list(pool)
    if len(inputs) < _POOL // 2 or len(set(pool.values())) < TESTS[0]:
        return None
    other_readings = [reading for reading in task.readings if reading != task.solution]
    caught: list[set[str]] = []
    # A reading with one open sentence misread is a confusion too: it counts twice when tests are picked.
    for expressions in (*other_readings, *task.confusions()):
        program = task.program(expressions)
        failing = {stdin for stdin in inputs if not passes(run_program(program, stdin), pool[stdin])}
        if len(failing) < _LEAST_FAILING:
            return None
        caught.append(failing)
    total = rng.randint(*TESTS)
    public = _pick(rng, inputs, caught, PUBLIC_TESTS)
    if any(failing.isdisjoint(public) for failing in caught[: len(other_readings)]):
        return None
    hidden = _pick(rng, [stdin for stdin in inputs if stdin not in public], caught, total - PUBLIC_TESTS)
    if any(failing.isdisjoint(hidden) for failing in caught):
        return None
    suites = (TestSuite(tuple(part), tuple(pool[stdin] for stdin in part)) for part in (public, hidden))
    return PocketProblem(task, *suites)


def draw_public(task: Task, rng: random.Random) -> TestSuite | None:
    """Four public tests, drawn quickly: which confusions fail them is not checked.

    None where too few inputs have a sensible output, or all outputs are equal.
    """
    pool = _draw_pool(task, rng, 2 * PUBLIC_TESTS)
    if len(pool) < PUBLIC_TESTS or len(set(pool.values())) < 2:
        return None
    return TestSuite(tuple(pool)[:PUBLIC_TESTS], tuple(pool.values())[:PUBLIC_TESTS])


def _draw_pool(task: Task, rng: random.Random, size: int) -> dict[str, str]:
    """Up to `size` inputs with their outputs; inputs for which the solution has no sensible output are left out."""
    solution = task.program(task.solution)
    pool: dict[str, str] = {}
    for _ in range(size):
        stdin = _draw_input(task, rng)
        outcome = run_program(solution, stdin)
        if outcome.stderr is None and outcome.output.strip() and len(outcome.output) <= _LONGEST_OUTPUT:
            pool[stdin] = outcome.output
    return pool


def passes(outcome: Outcome, expected: str) -> bool:
    """The judge's rule for a test: no crash, and the same output up to white space at both ends."""
    return outcome.stderr is None and outcome.output.strip() == expected.strip()


def _pick(rng: random.Random, inputs: list[str], caught: list[set[str]], count: int) -> list[str]:
    """`count` inputs, greedily those that catch most confusions not caught yet; ties are broken at random."""
    chosen: list[str] = []
    left = rng.sample(inputs, len(inputs))
    for _ in range(count):
        best = max(left, key=lambda stdin: sum(stdin in failing for failing in caught))
        chosen.append(best)
        left.remove(best)
        caught = [failing for failing in caught if best not in failing]
    return chosen


def _draw_input(task: Task, rng: random.Random) -> str:
    length = rng.randint(3, 7)
    # Narrow ranges give repeats and boundaries, wide ranges signs and large values.
    low, high = rng.choice(((-3, 9), (-9, 15), (1, 20)))
    reader, values = task.slots[0].right, [str(rng.randint(low, high)) for _ in range(length)]
    line = ("," if reader == "comma line" else " ").join(values)
    return f"{length}\n{line}" if reader == "count, line" else line
