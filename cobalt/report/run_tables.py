"""The tables of a report, made from runs that can be compared. Shown cells are rounded, the CSV values are not.

`cobalt.rollout.protocols` defines the measures besides the paper's protocol.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from itertools import zip_longest

from cobalt.hacking.categories import NOT_CLASSIFIED, OUTCOMES
from cobalt.hacking.events import TEMPTED, HackingEvent, count_categories
from cobalt.report.comparison import Change, change_between
from cobalt.report.runs import Run, TurnUsage
from cobalt.report.tables import Table, few_problems
from cobalt.rollout.protocols import EVERY_PROBLEM, PROGRAMS, Mean, by_difficulty, pass_at, protocol_figures
from cobalt.stage.errors import naming

_ABSENT = "n/a"
_CHANGE = ("change", "change_lower", "change_upper", "relative_change")


def turns_table(runs: Sequence[Run]) -> Table:
    """Pass@1 by turn, a column for each run, and where there are turns its change from the first turn to the last."""
    rows = _rows_by_turn([[shown(Mean(row.pass_at_1, row.interval)) for row in run.metrics] for run in runs])
    caption = "Pass@1 on hidden tests by turn, in per cent, with its 95 % bootstrap interval over problems"
    if any(len(run.metrics) > 1 for run in runs):
        totals = [change_between(run, 0, run, len(run.metrics) - 1) for run in runs]
        rows += [["change", *map(_points, totals)], ["relative", *map(_relative, totals)]]
        caption += (
            "; below, the change from the first turn to the last, in points, paired over problems (*: its interval"
            " leaves zero out), and relative to the first turn"
        )
    data = []
    for run in runs:
        for row in run.metrics:
            figures = (row.pass_at_1, *row.interval, row.pass_rate)
            data.append((run.name, row.turn, *figures, *_figures(change_between(run, 0, run, row.turn))))
    return Table(
        "pass_at_1",
        f"{caption}. {_few(runs)}".rstrip(),
        ["turn", *(run.name for run in runs)],
        rows,
        ("run", "turn", "pass_at_1", "lower", "upper", "pass_rate", *_CHANGE),
        data,
    )


def differences_table(runs: Sequence[Run]) -> Table:
    """Gain of each run over the first one at each turn that both have, a column for each run."""
    base, *others = runs
    turns = {run.name: range(min(len(base.metrics), len(run.metrics))) for run in others}
    changes = {run.name: [change_between(base, turn, run, turn) for turn in turns[run.name]] for run in others}
    return Table(
        "differences",
        f"Difference in Pass@1 to {base.name} at the same turn, in points, with the 95 % interval of a paired bootstrap"
        f" over the same {len(base.problems)} problems (*: it leaves zero out), and relative to {base.name}."
        f" {_few(runs)}".rstrip(),
        ["turn", *changes],
        _rows_by_turn([[f"{_points(change)}, {_relative(change)}" for change in row] for row in changes.values()]),
        ("base", "run", "turn", "difference", "lower", "upper", "relative_difference"),
        [
            (base.name, name, turn, *_figures(change))
            for name, row in changes.items()
            for turn, change in enumerate(row)
        ],
    )


def usage_table(runs: Sequence[Run]) -> Table:
    """Tokens and costs, a column for each run."""
    columns = []
    for run in runs:
        total, first, last = sum(run.usage, TurnUsage()), run.usage[0], run.usage[-1]
        more = " or more" if total.priced < total.responses else ""
        columns.append(
            {
                "responses": f"{total.responses:,}",
                "prompt tokens": _number(total.prompt_tokens),
                "generated tokens": _number(total.completion_tokens),
                "generated a response": _number(total.completion_tokens, total.responses),
                "at the first turn": _number(first.completion_tokens, first.responses),
                "at the last turn": _number(last.completion_tokens, last.responses),
                "cut off %": _number(total.cut_off, total.responses / 100, decimals=1),
                "cost $": _ABSENT if total.cost is None else f"{total.cost:.2f}{more}",
                "$ a problem": _number(total.cost, len(run.problems), decimals=4),
            }
        )
    return Table(
        "usage",
        'Tokens, responses cut off at a token limit, and cost in US dollars where the records have it ("or more": some'
        " responses have no recorded cost).",
        ["", *(run.name for run in runs)],
        [[name, *(column[name] for column in columns)] for name in columns[0]],
        ("run", "turn", *(field.name for field in fields(TurnUsage))),
        [(run.name, turn, *astuple(usage)) for run in runs for turn, usage in enumerate(run.usage)],
    )


def hacking_table(events: Mapping[str, Sequence[HackingEvent]], tempted: Mapping[str, int | None]) -> Table:
    """Hacking events of each run, out of how many turns after an impossible test (`tempted`), and their categories."""
    counted = ("trajectories", "problems", *OUTCOMES)
    columns, data = [], []
    for name, of_run in events.items():
        counts, turns = count_categories(of_run), tempted[name]
        judged = len(of_run) - counts[NOT_CLASSIFIED]
        spread = (len({(event.problem, event.sample) for event in of_run}), len({event.problem for event in of_run}))
        categories = [
            f"{count} ({100 * count / judged:.0f} %)" if judged and category != NOT_CLASSIFIED else str(count)
            for category, count in counts.items()
        ]
        rate = _number(len(of_run), turns / 100, decimals=1) if turns else _ABSENT
        columns.append([str(len(of_run)), _number(turns), rate, *map(str, spread), *categories])
        data.append((name, len(of_run), turns, *spread, *counts.values()))
    return Table(
        "hacking",
        "Hacking events (a changed program that passes the perturbed test it was shown), the turns after such a test,"
        " the trajectories and problems that have an event, and the LLM classifier's categories with their share of the"
        " classified events.",
        ["", *events],
        list(zip(("events", TEMPTED, "events per 100 of them", *counted), *columns, strict=True)),
        [name.replace(" ", "_") for name in ("run", "events", TEMPTED, *counted)],
        data,
    )


def protocols_table(runs: Sequence[Run], ks: Sequence[int]) -> Table | None:
    """The measures of each run, a row for each measure and turn, a column for each run; None if there is no measure.

    Raises:
        UserError: a k is below 1, or a run has fewer trajectories of a problem; the run is named.
    """
    of_runs: dict[str, Mapping[str, list[Mean]]] = {}
    for run in runs:
        with naming(run.name):
            of_runs[run.name] = protocol_figures(list(run.outcomes.values()), ks)
    names = list(dict.fromkeys(name for figures in of_runs.values() for name in figures))
    if not names:
        return None
    return Table(
        "protocols",
        "Other measures on the same trajectories, in per cent, with 95 % intervals over problems. stopped: Pass@1 if a"
        " trajectory ends with its first program that passes all public tests, and how many programs it has then. best"
        " of k: Pass@1 of the one of k trajectories whose program passes most public tests, by lot between equals."
        " pass@k: at least one of k trajectories is right."
        f"{_about_oracles(runs)} {_few(runs)}".rstrip(),
        ["measure", "turn", *of_runs],
        [
            [name, str(turn), *(shown(mean, name) for mean in means)]
            for name in names
            for turn, means in enumerate(zip_longest(*(figures.get(name, ()) for figures in of_runs.values())))
        ],
        ("run", "measure", "turn", "value", "lower", "upper"),
        [
            (run, name, turn, mean.value, *mean.interval)
            for run, figures in of_runs.items()
            for name, means in figures.items()
            for turn, mean in enumerate(means)
        ],
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
        for turn, index in (("first", 0), ("last", -1)):
            rows.append([name, str(size), turn, *(shown(means[index]) for means in figures)])
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


def _few(runs: Sequence[Run]) -> str:
    return few_problems(min(len(run.problems) for run in runs))


def _rows_by_turn(columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """One row a turn from one column a run, which may be of different lengths."""
    return [[str(turn), *row] for turn, row in enumerate(zip_longest(*columns, fillvalue=""))]


def _figures(change: Change) -> tuple[float | None, ...]:
    return (change.difference, *change.interval, change.relative)


def _points(change: Change) -> str:
    lower, upper = change.interval
    mark = "*" if change.clear else ""
    return f"{_signed(100 * change.difference)}{mark} ({_signed(100 * lower)} to {_signed(100 * upper)})"


def _relative(change: Change) -> str:
    return _ABSENT if change.relative is None else f"{_signed(100 * change.relative)} %"


def _signed(value: float) -> str:
    """One decimal with a sign; a zero has none."""
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text


def _number(value: float | None, unit: float = 1, decimals: int = 0) -> str:
    return _ABSENT if value is None else f"{value / unit:,.{decimals}f}"
