"""Compare evaluated runs problem by problem, and refuse to compare what cannot be compared."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cobalt.problems.problem import ProblemId
from cobalt.report.runs import Run
from cobalt.rollout.metrics import DIFFERENCES, bootstrap_interval
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import changed_settings, is_named


@dataclass(frozen=True, slots=True)
class Change:
    """The mean over the same problems of a difference in Pass@1, from 0 to 1, and its 95 % interval."""

    difference: float
    interval: tuple[float, float]
    relative: float | None

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.interval[0] > 0 or self.interval[1] < 0


def check_comparable(runs: Sequence[Run], allowed: Sequence[str] = ()) -> list[str]:
    """Refuse runs of different problems or settings; the first run is what the others are compared with.

    `allowed` are settings that may differ, by dotted name or part of it: "temperature" or "multi_turn.prompts". Returns
    a phrase for each such difference.

    Raises:
        UserError: the runs differ; the difference is named.
    """
    base, *others = runs
    accepted: list[str] = []
    for other in others:
        difference = problem_difference(base.name, base.problems, other.name, other.problems)
        if difference:
            raise UserError(
                f"{base.name} and {other.name} cannot be compared: {difference}. Evaluate both on the same problems"
            )
        differing = {
            name.removesuffix(" (digest)"): f"{name} is {before!r} in {base.name} and {after!r} in {other.name}"
            for name, (before, after) in changed_settings(base.settings, other.settings).items()
        }
        accepted += [phrase for name, phrase in differing.items() if is_named(name, allowed)]
        refused = {name: phrase for name, phrase in differing.items() if not is_named(name, allowed)}
        if refused:
            raise UserError(
                f"{base.name} and {other.name} cannot be compared: {'; '.join(refused.values())}."
                f" Compare runs of the same settings, or let these differ: --allow {shlex.join(refused)}"
            )
    return accepted


def change_between(base: Run, base_turn: int, other: Run, other_turn: int) -> Change:
    """The paired difference of `other` at one turn to `base` at another, over the problems that both hold.

    A problem's two values stay together in each resample (paired bootstrap over problems), so that how hard the
    problems are does not widen the interval. A turn of a run does not differ from itself.
    """
    if other is base and other_turn == base_turn:
        return Change(0.0, (0.0, 0.0), 0.0 if base.metrics[base_turn].pass_at_1 > 0 else None)
    differences = [turns[other_turn] - base.pass_at_1[problem][base_turn] for problem, turns in other.pass_at_1.items()]
    mean = sum(differences) / len(differences)
    start = base.metrics[base_turn].pass_at_1
    return Change(mean, bootstrap_interval(differences, bounds=DIFFERENCES), mean / start if start > 0 else None)


def problem_difference(
    name: str, problems: Mapping[ProblemId, str], other_name: str, other_problems: Mapping[ProblemId, str]
) -> str:
    """The difference between the problems of two runs, each with the digests of its problems, in words; "" for none."""
    for owner, whole, lacker, part in (
        (name, problems, other_name, other_problems),
        (other_name, other_problems, name, problems),
    ):
        if absent := [problem for problem in whole if problem not in part]:
            return f"{len(absent)} of the {len(whole)} problems of {owner} are not in {lacker}, such as {absent[0]!r}"
    changed = [problem for problem, digest in problems.items() if other_problems[problem] != digest]
    return f"question or hidden tests of {len(changed)} problems differ, such as {changed[0]!r}" if changed else ""
