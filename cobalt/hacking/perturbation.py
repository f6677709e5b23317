"""Impossible public tests: two expected outputs of each problem are swapped (Cobalt, section on in-context hacking).

As in the authors' run_perturbation.py, public tests are shuffled, and the first two with distinct outputs swap theirs
and go to the front, so that one of them is the first failure that feedback shows. Here the shuffle is seeded, and the
other tests keep their order. Hidden tests, and with them rewards, stay unchanged.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from cobalt.problems.problem import PERTURBED_TESTS, Problem, TestSuite, load_problems
from cobalt.stage.errors import UserError, tally
from cobalt.stage.manifest import write_summary
from cobalt.stage.run import Each, Input, OptionalFile, Outcome, Output, made, quoted, stage

BY_ID, ASSERTIONS, EQUAL = "left out by id", "the public tests are assertions", "all public outputs are equal"


@dataclass(frozen=True)
class PerturbationSettings:
    """Swap the expected outputs of two public tests of each problem, so that no correct program passes them."""

    input_file: Input
    """Problems with public tests, or a single-turn result, which keeps its shared first turn (JSONL)."""
    output_file: Output
    """The same records with the perturbed tests (JSONL), with their manifest next to them as .run.json."""
    exclude_ids: OptionalFile = None
    """File with one id a line: problems to leave out, such as those with several right answers."""
    seed: int = 42
    """Decides which tests of a problem are swapped."""


@stage
async def perturb(settings: PerturbationSettings) -> Outcome:
    """Write the perturbed problems in the order of the input, and count them; running again resumes.

    A record is the problem's fields, `modified_test_cases` (the two tests with swapped outputs) and
    `perturbed_public_test_cases` (all public tests, the swapped ones first).

    Raises:
        UserError: bad input, a result that other settings made, or no problem is left.
    """
    problems = load_problems(settings.input_file)
    excluded = _read_ids(settings.exclude_ids, settings.input_file, problems) if settings.exclude_ids else frozenset()
    for problem in problems:
        if not len(problem.public_tests):
            raise UserError(f"{settings.input_file}: problem {problem.id!r} has no public tests ('public_test_cases')")
    counts = {"read": len(problems)} | dict.fromkeys((BY_ID, ASSERTIONS, EQUAL, "perturbed"), 0)

    def pairs() -> Iterator[tuple[Problem, TestSuite, TestSuite]]:
        for problem in problems:
            if str(problem.id) in excluded:
                counts[BY_ID] += 1
            elif problem.public_tests.asserts:  # without expected outputs that could be swapped
                counts[ASSERTIONS] += 1
            elif pair := swap_outputs(problem.public_tests, random.Random(f"{settings.seed} {problem.id}")):
                counts["perturbed"] += 1
                yield problem, *pair
            else:
                counts[EQUAL] += 1

    async def record(item: tuple[Problem, TestSuite, TestSuite]) -> dict[str, Any]:
        problem, modified, perturbed = item
        return dict(problem.record) | {"modified_test_cases": modified.to_json(), PERTURBED_TESTS: perturbed.to_json()}

    inputs = [settings.input_file, *([settings.exclude_ids] if settings.exclude_ids else [])]
    with Each(settings.output_file, {"stage": "perturbation", "seed": settings.seed}, inputs) as result:
        await result.make(pairs(), lambda item: item[0].id, record, concurrency=1)
    if not counts["perturbed"]:
        raise UserError(f"{settings.input_file}: no problem can be perturbed ({tally(counts)})")
    write_summary(settings.output_file, {"problems": counts})
    target = settings.output_file
    repair = f"cobalt repair -i {quoted(target)} --public_tests perturbed"
    following = f"{repair} -o {quoted(target.with_name('multi_turn.jsonl'))}"
    return made({"problems": counts}, "Perturbed public tests", target, following)


def swap_outputs(public: TestSuite, rng: random.Random) -> tuple[TestSuite, TestSuite] | None:
    """Swap the expected outputs of two tests whose outputs differ, also without the white space around them.

    Returns:
        The two impossible tests, and all tests: these two first, then the others in their order. None if all outputs
        are equal.
    """
    order = list(range(len(public)))
    rng.shuffle(order)
    first_with: dict[str, int] = {}
    for index in order:
        first_with.setdefault(public.outputs[index].strip(), index)
    if len(first_with) < 2:
        return None
    left, right = list(first_with.values())[:2]
    rest = public.select(index for index in range(len(public)) if index not in (left, right))
    swapped = replace(public.select([left, right]), outputs=(public.outputs[right], public.outputs[left]))
    return swapped, replace(public, inputs=swapped.inputs + rest.inputs, outputs=swapped.outputs + rest.outputs)


def _read_ids(path: Path, input_file: Path, problems: list[Problem]) -> frozenset[str]:
    """The listed ids; one that is not a problem's is refused, because a mistyped one would leave its problem in."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: give one id a line") from None
    ids = {line.strip() for line in text.split("\n")} - {""}
    if unknown := sorted(ids - {str(problem.id) for problem in problems}):
        raise UserError(f"{path}: {len(unknown)} of its ids are not in {input_file}, such as {unknown[0]!r}")
    return frozenset(ids)
