"""Measures of evaluated trajectories besides the paper's protocol: pass@k, stopping early, selection by public tests.

The paper's protocol (`cobalt.rollout.evaluate`) takes the program of a fixed turn, because an episode does not stop
when its public tests pass. The measures here say what the same trajectories give under other rules:

| measure | the program at turn t |
|---|---|
| pass@k | any of k trajectories: at least one of their programs of turn t is right |
| stopped | that of the first turn, up to t, whose public tests all pass; that of turn t if there is none |
| best of k | the one of k trajectories' programs of turn t that passes most public tests; by lot between equals |

Stopped and best of k choose by public tests alone, which are there when a model is used; where every hidden test is
public as well, they are an oracle. A program is right if it passes every hidden test. Nothing is judged here, and no
table is written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from cobalt.episode.record import feedback_tests
from cobalt.episode.trajectory import ProblemTrajectories
from cobalt.problems.problem import TestSuite
from cobalt.rollout.metrics import RATES, best_of_k, bootstrap_interval, pass_at_k
from cobalt.stage.errors import UserError
from cobalt.stage.run import Flag

Ks = Annotated[
    tuple[int, ...],
    Flag(
        None,
        text="The k of pass@k and of the best of k by public tests. Default: the best of all samples, without pass@k;"
        " of a single-turn result pass@1, and pass@10 if every problem has at least 10 samples.",
    ),
]

EVERY_PROBLEM = "all"

STOPPED = "stopped"
"""Pass@1 of trajectories that stop when their public tests pass."""

PROGRAMS = "programs until then"
"""Number of programs that such a trajectory has written."""

ORACLE = "oracle "


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over problems, and its 95 % bootstrap interval over problems."""

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Results of the trajectories of one problem, without their programs; rates lie between 0 and 1.

    Attributes:
        difficulty: As the problem has it; "" if it has none.
        hidden: Share of hidden tests passed, [sample][turn].
        public: Share of public tests passed, [sample][turn]; None if the file does not have it.
        hidden_is_public: Whether every hidden test is among the public ones, so that they give the answer away.
        distinct: Number of different programs in its first turns, and number of different right ones; None: not
            counted (`cobalt.rollout.evaluate.count_distinct`).
    """

    difficulty: str
    hidden: tuple[tuple[float, ...], ...]
    public: tuple[tuple[float, ...], ...] | None = None
    hidden_is_public: bool = False
    distinct: tuple[int, int] | None = None

    @property
    def samples(self) -> int:
        """Number of trajectories."""
        return len(self.hidden)

    @property
    def right(self) -> list[list[bool]]:
        """Whether each program passes every hidden test, [turn][sample]."""
        return [[rate == 1.0 for rate in rates] for rates in zip(*self.hidden, strict=True)]

    def pass_at(self, k: int) -> list[float]:
        """Unbiased pass@k by turn; raises UserError: k is below 1, or there are fewer than k trajectories."""
        _check_samples(self, k)
        return [pass_at_k(self.samples, sum(right), k) for right in self.right]


def outcomes_of(group: ProblemTrajectories) -> Outcomes:
    """The outcomes of an evaluated problem; raises UserError: it is not evaluated."""
    judged = all(turn.public_pass_rate is not None for trajectory in group.trajectories for turn in trajectory.turns)
    return Outcomes(
        difficulty=str(group.problem.record.get("difficulty") or ""),
        hidden=tuple(tuple(each.hidden_pass_rates) for each in group.trajectories),
        public=tuple(tuple(each.public_pass_rates) for each in group.trajectories) if judged else None,
        hidden_is_public=_pairs(group.problem.hidden_tests) <= _pairs(feedback_tests(group.problem)),
    )


def _pairs(tests: TestSuite) -> set[tuple[str, str]]:
    return set(zip(tests.inputs, tests.outputs, strict=True))


def stopping_turns(public: Sequence[float]) -> list[int]:
    """For each turn t, the turn whose program is taken: the first up to t whose public tests all pass, otherwise t."""
    first = next((turn for turn, rate in enumerate(public) if rate == 1.0), len(public))
    return [min(turn, first) for turn in range(len(public))]


def pass_at(outcomes: Iterable[Outcomes], k: int) -> list[Mean]:
    """Unbiased pass@k by turn; errors as for `Outcomes.pass_at`."""
    return means_by_turn([one.pass_at(k) for one in outcomes])


def best_of(outcomes: Iterable[Outcomes], k: int) -> list[Mean]:
    """Pass@1 by turn of the best of k trajectories by public tests, which must have been judged; see `pass_at`."""
    rows = []
    for one in outcomes:
        _check_samples(one, k)
        public = zip(*(one.public or ()), strict=True)
        rows.append([best_of_k(rates, right, k) for rates, right in zip(public, one.right, strict=True)])
    return means_by_turn(rows)


def protocol_figures(outcomes: Sequence[Outcomes], ks: Sequence[int]) -> dict[str, list[Mean]]:
    """The measures of one run by name, each by turn; those that need public results are left out without these.

    The best of k is called an oracle where each problem's hidden tests are all public. Without `ks` the best is that of
    all samples, and there is no pass@k. Raises as `Outcomes.pass_at`.
    """
    figures = {f"pass@{k}": pass_at(outcomes, k) for k in ks}
    if any(one.public is None for one in outcomes):
        return figures
    right: list[list[float]] = []
    programs: list[list[float]] = []
    for one in outcomes:
        assert one.public is not None
        taken = list(map(stopping_turns, one.public))
        rates = [[rates[turn] for turn in turns] for rates, turns in zip(one.hidden, taken, strict=True)]
        right.append([sum(rate == 1.0 for rate in of_turn) / one.samples for of_turn in zip(*rates, strict=True)])
        programs.append([sum(turn + 1 for turn in turns) / one.samples for turns in zip(*taken, strict=True)])
    figures |= {STOPPED: means_by_turn(right), PROGRAMS: means_by_turn(programs, bounds=None)}
    oracle = ORACLE if all(one.hidden_is_public for one in outcomes) else ""
    best = ks or [min(one.samples for one in outcomes)]
    return figures | {f"{oracle}best of {k}": best_of(outcomes, k) for k in best if k > 1}


def by_difficulty(outcomes: Sequence[Outcomes]) -> dict[str, list[Outcomes]]:
    """All problems under "all", and then those of each difficulty in the order in which difficulties appear."""
    groups = {EVERY_PROBLEM: list(outcomes)}
    for one in outcomes:
        if one.difficulty:
            groups.setdefault(one.difficulty, []).append(one)
    return groups


def check_k(ks: Sequence[int]) -> None:
    """Raise UserError if a k is below 1."""
    for k in ks:
        if k < 1:
            raise UserError(f"k is {k}: it must be 1 or more")


def _check_samples(one: Outcomes, k: int) -> None:
    check_k([k])
    if one.samples < k:
        raise UserError(f"k = {k} needs at least {k} samples of each problem: a problem has {one.samples}")


def means_by_turn(rows: Sequence[Sequence[float]], bounds: tuple[float, float] | None = RATES) -> list[Mean]:
    """The means over problems of figures by turn, [problem][turn]; `bounds` as for `bootstrap_interval`.

    Raises UserError: there is no problem, or they differ in their number of turns.
    """
    if not rows:
        raise UserError("there is no evaluated problem")
    if len(set(map(len, rows))) > 1:
        raise UserError("problems differ in their number of turns: evaluate runs with the same number together")
    return [mean_over_problems(values, bounds) for values in zip(*rows, strict=True)]


def mean_over_problems(values: Sequence[float], bounds: tuple[float, float] | None = None) -> Mean:
    """The mean of one value for each problem, with its interval; `bounds` as for `bootstrap_interval`."""
    return Mean(sum(values) / len(values), bootstrap_interval(values, bounds=bounds))
