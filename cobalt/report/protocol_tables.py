"""Tables of the measures beside the paper's protocol: pass@k, stopping early, selection by public tests, difficulties.

`cobalt.rollout.protocols` defines the measures. Shown cells are rounded, the CSV values are not.
"""

from collections.abc import Mapping, Sequence

from cobalt.report.runs import Run
from cobalt.report.tables import Table, few_problems
from cobalt.rollout.protocols import (
    EVERY_PROBLEM,
    PROGRAMS,
    Mean,
    by_difficulty,
    pass_at,
    protocol_figures,
)
from cobalt.stage.errors import UserError

_ABSENT = "n/a"


def protocols_table(runs: Sequence[Run], ks: Sequence[int]) -> Table | None:
    """The measures of each run, a row for each measure and turn, a column for each run; None if there is no measure.

    Without `ks`, pass@k has the k that the evaluations of the runs were asked for, as far as all runs have the samples.

    Raises:
        UserError: a k is below 1, or a run has fewer trajectories of a problem; the run is named.
    """
    fewest = min(one.samples for run in runs for one in run.outcomes.values())
    asked = sorted({k for run in runs for k in run.asked if k <= fewest})
    of_runs: dict[str, Mapping[str, list[Mean]]] = {}
    for run in runs:
        try:
            of_runs[run.name] = protocol_figures(list(run.outcomes.values()), ks, asked)
        except UserError as error:
            raise UserError(f"{run.name}: {error}") from None
    names = list(dict.fromkeys(name for figures in of_runs.values() for name in figures))
    if not names:
        return None
    rows, data = [], []
    for name in names:
        turns = max(len(figures[name]) for figures in of_runs.values() if name in figures)
        for turn in range(turns):
            means = [figures[name][turn] if turn < len(figures.get(name, ())) else None for figures in of_runs.values()]
            rows.append([name, str(turn), *(shown(mean, name) for mean in means)])
    for run_name, figures in of_runs.items():
        for name, means_by_turn in figures.items():
            data += [(run_name, name, turn, mean.value, *mean.interval) for turn, mean in enumerate(means_by_turn)]
    return Table(
        "protocols",
        "Other measures on the same trajectories, in per cent, with 95 % intervals over problems. stopped: Pass@1 if a"
        " trajectory ends with its first program that passes all public tests, and how many programs it has then. best"
        " of k: Pass@1 of the one of k trajectories whose program passes most public tests, by lot between equals."
        " pass@k: at least one of k trajectories is right."
        f"{_about_oracles(runs)} {few_problems(min(len(run.problems) for run in runs))}".rstrip(),
        ["measure", "turn", *of_runs],
        rows,
        ("run", "measure", "turn", "value", "lower", "upper"),
        data,
    )


def _about_oracles(runs: Sequence[Run]) -> str:
    """A sentence on problems whose hidden tests are all public; "" if no measure chooses by the tests of such a one."""
    outcomes = [one for run in runs for one in run.outcomes.values() if one.public is not None]
    oracles = sum(one.hidden_is_public for one in outcomes)
    if not oracles:
        return ""
    return (
        f" In {100 * oracles / len(outcomes):.0f} % of the problems every hidden test is a public test, so that stopped"
        " and best of k choose there by the tests that decide (an oracle), which no user of a model has."
    )


def difficulty_table(runs: Sequence[Run]) -> Table | None:
    """Pass@1 by difficulty at the first and the last turn; None unless there are two difficulties.

    The runs have the same problems.
    """
    groups = {run.name: by_difficulty(list(run.outcomes.values())) for run in runs}
    names = [name for name in next(iter(groups.values())) if name != EVERY_PROBLEM]
    if len(names) < 2:
        return None
    rows, data = [], []
    for name in (EVERY_PROBLEM, *names):
        figures = [pass_at(of_run[name], 1) for of_run in groups.values()]
        size = len(next(iter(groups.values()))[name])
        for place in dict.fromkeys((0, -1)):
            turn = "first" if place == 0 else "last"
            rows.append([name, str(size), turn, *(shown(means[place]) for means in figures)])
        for run, means in zip(groups, figures, strict=True):
            data += [(run, name, size, turn, mean.value, *mean.interval) for turn, mean in enumerate(means)]
    return Table(
        "difficulty",
        "Pass@1 by difficulty at the first and the last turn, in per cent, with 95 % intervals over problems."
        f" {few_problems(min(len(of_run[name]) for of_run in groups.values() for name in names))}".rstrip(),
        ["difficulty", "problems", "turn", *groups],
        rows,
        ("run", "difficulty", "problems", "turn", "pass_at_1", "lower", "upper"),
        data,
    )


def shown(mean: Mean | None, measure: str = "") -> str:
    """A cell: per cent with the interval, or a number of programs; "n/a" where a run does not have the measure."""
    if mean is None:
        return _ABSENT
    if measure == PROGRAMS:
        return f"{mean.value:.2f}"
    return f"{100 * mean.value:.1f} ({100 * mean.interval[0]:.0f}-{100 * mean.interval[1]:.0f})"
