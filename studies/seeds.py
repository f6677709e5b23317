"""Compare methods over several seeds, each with problems of its own: pooled Pass@1, paired differences, repairs.

A pooled figure is the mean over the problems of all seeds. Its interval is of a bootstrap over these problems, and says
how much other problems would change it; differences are paired, problem by problem. How much another run would change a
difference (its world, seed model, training and sampling), an interval over the seeds' own differences says
(`over_runs`). Only where both leave zero out is the sign of a difference known (`Gain.known`).
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cobalt.episode.record import read_trajectories
from cobalt.report.comparison import check_comparable
from cobalt.report.runs import Run, read_run
from cobalt.rollout.metrics import bootstrap_interval

SeedRuns = Mapping[int, Run]
"""The runs of one method, by seed."""

_STUDENT = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
"""The 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom; with more than these it falls to 1.96."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems or runs, and its 95 % interval."""

    mean: float
    lower: float
    upper: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.lower > 0 or self.upper < 0


@dataclass(frozen=True, slots=True)
class Gain:
    """A difference in Pass@1 over problems, and over runs; None for a single run."""

    problems: Estimate
    runs: Estimate | None

    @property
    def known(self) -> bool:
        """Whether both intervals leave zero out.

        Runs whose figures are equal by chance have an interval without width, which says nothing.
        """
        runs = self.runs
        return runs is not None and runs.upper - runs.lower > 1e-9 and self.problems.clear and runs.clear


def read_runs(folders: Mapping[str, Mapping[int, Path]]) -> dict[str, dict[int, Run]]:
    """The evaluated runs of each method, from their folders by seed.

    Raises UserError if a run is missing or cannot be read, or those of a seed cannot be compared.
    """
    runs = {name: {seed: read_run(name, run) for seed, run in by_seed.items()} for name, by_seed in folders.items()}
    for seed in next(iter(runs.values())):
        check_comparable([by_seed[seed] for by_seed in runs.values()])
    return runs


def pooled(runs: SeedRuns, turn: int) -> Estimate:
    """Pass@1 at a turn over the problems of all seeds, from 0 to 1."""
    return over_problems([values[turn] for run in runs.values() for values in run.pass_at_1.values()])


def gain(base: SeedRuns, base_turn: int, other: SeedRuns, other_turn: int) -> Gain:
    """Pass@1 of `other` at a turn minus that of `base` at a turn, paired over the problems of all seeds."""
    differences = [
        values[other_turn] - base[seed].pass_at_1[problem][base_turn]
        for seed, run in other.items()
        for problem, values in run.pass_at_1.items()
    ]
    return Gain(over_problems(differences), over_runs(run_differences(base, base_turn, other, other_turn)))


def run_differences(base: SeedRuns, base_turn: int, other: SeedRuns, other_turn: int) -> list[float]:
    """Pass@1 of `other` at a turn minus that of `base` at a turn, of each seed, in the order of the seeds."""
    return [
        other[seed].metrics[other_turn].pass_at_1 - base[seed].metrics[base_turn].pass_at_1 for seed in sorted(other)
    ]


def over_problems(values: Sequence[float]) -> Estimate:
    """The mean of one value for each problem, with its bootstrap interval."""
    return Estimate(sum(values) / len(values), *bootstrap_interval(values))


def over_runs(values: Sequence[float]) -> Estimate | None:
    """The mean of one value for each run with its interval, mean ± t s / √n; None for a single run.

    t is Student's of n - 1 degrees of freedom: runs are few, and a bootstrap over few values is far too narrow. The
    interval is exact if the values of runs are normally distributed.
    """
    if len(values) < 2:
        return None
    quantile = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1]
    middle, half = statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(middle, middle - half, middle + half)


def moves(evaluations: Sequence[Path]) -> list[Counter[str]]:
    """The moves into each turn after the first one, counted over the evaluated trajectories of some files.

    Each has the `wrong` programs of the turn before, which fail a hidden test, and those of them that are followed by
    one that passes every hidden test (`repaired`) or by the same program (`repeated`); and the `right` programs, and
    those of them that are followed by one that passes, too (`stayed`).

    Raises UserError if a file cannot be read.
    """
    into: list[Counter[str]] = []
    for path in evaluations:
        for trajectory in (trajectory for group in read_trajectories(path) for trajectory in group.trajectories):
            into += [Counter() for _ in range(len(trajectory.turns) - 1 - len(into))]
            for count, (before, after) in zip(into, pairwise(trajectory.turns), strict=False):
                solved = after.hidden_pass_rate == 1
                if before.hidden_pass_rate == 1:
                    count.update(right=1, stayed=solved)
                else:
                    same = before.program is not None and before.program == after.program
                    count.update(wrong=1, repaired=solved, repeated=same)
    return into
