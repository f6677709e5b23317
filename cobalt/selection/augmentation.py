"""Perturbed prompts (Cobalt-PTB): partial trajectories whose last feedback shows a test that cannot be passed.

The last program of a partial trajectory is run again on the problem's perturbed public tests, and the failure found
there replaces the last feedback. The reward is still computed on the true tests. run_perturbation.py decides which
tests are perturbed (field `perturbed_public_test_cases`). The paper does not state its mixing ratio.
"""

from collections.abc import Callable
from pathlib import Path

from cobalt.episode import Message, PromptSet
from cobalt.episode.episode import Episode, judge_response
from cobalt.episode.trajectory import Turn
from cobalt.judge import Judge, VerdictKind
from cobalt.problems.problem import PERTURBED_TESTS, Problem, ProblemId, TestSuite
from cobalt.stage.errors import UserError, naming
from cobalt.stage.rows import read_rows


def perturbed_tests(path: Path | None) -> Callable[[Problem], TestSuite | None]:
    """Finder of the perturbed public tests of a problem: in its record, or in the result of run_perturbation.py.

    It gives None for a problem without any, as run_perturbation.py leaves some out, and raises UserError if the file
    has a problem of its id with other public tests.

    Raises:
        UserError: the file cannot be read, or a problem in it has no perturbed tests.
    """
    if path is None:
        return Problem.perturbed_tests
    suites: dict[ProblemId, tuple[TestSuite, TestSuite]] = {}
    for position, record in read_rows(path):
        with naming(f"{path}, {position}"):
            made = Problem.parse(record)
            perturbed = made.perturbed_tests()
            if perturbed is None:
                raise UserError(f"field {PERTURBED_TESTS!r} is missing: run run_perturbation.py first")
        suites[made.id] = (made.public_tests, perturbed)

    def of(problem: Problem) -> TestSuite | None:
        true, perturbed = suites.get(problem.id, (problem.public_tests, None))
        if true != problem.public_tests:
            raise UserError(
                f"{path}: problem {problem.id!r} has other public tests than the trajectories' problem of that id: give"
                " the file that was made from the problems of this run"
            )
        return perturbed

    return of


async def impossible_feedback(
    judge: Judge, prompts: PromptSet, response: str, true_tests: TestSuite, perturbed: TestSuite
) -> Message | None:
    """The user message that shows a response's program failing a test that no correct program can pass.

    `perturbed` are the problem's public tests, two of them with swapped expected outputs.

    Returns:
        None when the message would not show an impossible expectation: without a program, when the first failing
        test is a true one, or when the program fails by an error, whose feedback shows no expected output.

    Raises:
        InfrastructureError: the judge failed.
    """
    # Earlier messages do not matter: only the answer to this one response is used.
    episode = Episode([], perturbed, prompts, turns=1, enable_thinking=True)
    result = await judge_response(judge, response, perturbed)
    failed = result.first_failed()
    if failed is None or result.verdicts[failed].kind is not VerdictKind.WRONG_ANSWER:
        return None
    true_pairs = set(zip(true_tests.inputs, true_tests.outputs, strict=True))
    if (perturbed.inputs[failed], perturbed.outputs[failed]) in true_pairs:
        return None
    episode.observe(Turn(response), result)
    return episode.messages[-1]
