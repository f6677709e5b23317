"""One-step recoverability, estimated from collected trajectories: what a wrong program costs after its own turn.

Reward 1 for each turn whose program passes every hidden test. Then the advantage of a wrong program over a right one
at turn t is

    A(t) = -(1 + sum over later turns k of D(t, k))
    D(t, k) = P(right at k | right at t) - P(right at k | wrong at t)

A task is one-step recoverable if the advantage of no action falls below -1 under the optimal policy (Jain et al., arXiv
2502.20380, definition 3.1): a mistake costs its own turn and nothing after it, all D are 0. Cobalt's bound rests on
this property (arXiv 2602.03806).

The estimate compares trajectories of one problem whose earlier programs had the same outcomes, so that hard problems
and bad beginnings do not pass for costly mistakes. It has limits:

- D is that of the policy that wrote the trajectories, not of the optimal one. A policy that repairs little lies far
  below -1 even where the task is recoverable.
- Earlier programs of the same outcome may still differ.
- Problems without both outcomes after the same beginning say nothing, and are left out: the later the turn, the more.
- Turns after those of the trajectories are not counted.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from cobalt.episode.record import read_trajectories
from cobalt.rollout.metrics import bootstrap_interval
from studies.seeds import Estimate


def recoverability(evaluations: Sequence[Path]) -> list[tuple[int, int, float, float, Estimate]]:
    """The estimate at each turn but the last one; turns at which no problem has both outcomes are left out.

    The files have evaluated trajectories, several for each problem. Raises UserError if one cannot be read.

    Returns:
        The turn; the problems with right and wrong programs at that turn after the same beginning, which the estimate
        is about; the share of right programs at the next turn after a right one and after a wrong one, as the mean over
        these problems; and A(t), by the later turns. A problem with several such beginnings counts once, with their
        mean.
    """
    by_turn: dict[int, list[tuple[float, ...]]] = {}
    for path in evaluations:
        for group in read_trajectories(path):
            outcomes = [[rate == 1 for rate in trajectory.hidden_pass_rates] for trajectory in group.trajectories]
            for turn in range(len(outcomes[0]) - 1):
                begun: dict[tuple[bool, ...], list[list[bool]]] = {}
                for outcome in outcomes:
                    begun.setdefault(tuple(outcome[:turn]), []).append(outcome[turn:])
                if compared := [row for same in begun.values() if (row := _compared(same)) is not None]:
                    by_turn.setdefault(turn, []).append(tuple(map(fmean, zip(*compared, strict=True))))
    estimates = []
    for turn, rows in sorted(by_turn.items()):
        after_right, after_wrong, advantages = zip(*rows, strict=True)
        estimate = Estimate(fmean(advantages), *bootstrap_interval(advantages))
        estimates.append((turn, len(rows), fmean(after_right), fmean(after_wrong), estimate))
    return estimates


def _compared(outcomes: Sequence[Sequence[bool]]) -> tuple[float, float, float] | None:
    """Right next after right, right next after wrong and the advantage, from a turn on, after one beginning."""
    right, wrong = ([outcome[1:] for outcome in outcomes if outcome[0] is first] for first in (True, False))
    if not right or not wrong:
        return None
    lost = fmean(sum(later) for later in right) - fmean(sum(later) for later in wrong)
    return fmean(later[0] for later in right), fmean(later[0] for later in wrong), -1 - lost
