"""The tables of a report, made from runs that can be compared. They are shown in per cent and kept unrounded."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from cobalt.report.hacking import CATEGORIES, HackingEvent, count_categories
from cobalt.report.runs import Change, Run, TurnUsage, change_between
from cobalt.report.tables import Table

_ABSENT = "n/a"


def turns_table(runs: Sequence[Run]) -> Table:
    """Pass@1 by turn, a column for each run, and its change from the first turn to the last."""
    cells = [[f"{_percent(row.pass_at_1)} ({_interval(row.interval)})" for row in run.metrics] for run in runs]
    totals = [change_between(run, 0, run, len(run.metrics) - 1) for run in runs]
    data = []
    for run in runs:
        for row in run.metrics:
            change = change_between(run, 0, run, row.turn)
            data.append(
                (run.name, row.turn, row.pass_at_1, *row.interval, row.pass_rate, change.difference, *change.interval,
                 change.relative)
            )  # fmt: skip
    return Table(
        "pass_at_1",
        "Pass@1 on hidden tests by turn, in per cent, with its 95 % bootstrap interval over problems; below, the change"
        " from the first turn to the last, in points, paired over problems (*: its interval leaves zero out), and"
        " relative to the first turn.",
        ["turn", *(run.name for run in runs)],
        [
            *_rows_by_turn(cells),
            ["change", *map(_points, totals)],
            ["relative", *(_relative(change.relative) for change in totals)],
        ],
        ("run", "turn", "pass_at_1", "lower", "upper", "pass_rate", "change", "change_lower", "change_upper",
         "relative_change"),
        data,
    )  # fmt: skip


def differences_table(runs: Sequence[Run]) -> Table:
    """What each run gains over the first one at each turn that both have, a column for each run."""
    base, *others = runs
    changes = {
        run.name: [change_between(base, turn, run, turn) for turn in range(min(len(base.metrics), len(run.metrics)))]
        for run in others
    }
    return Table(
        "differences",
        f"Difference in Pass@1 to {base.name} at the same turn, in points, with the 95 % interval of a paired bootstrap"
        f" over the same {len(base.problems)} problems (*: it leaves zero out), and relative to {base.name}.",
        ["turn", *changes],
        _rows_by_turn(
            [[f"{_points(change)}, {_relative(change.relative)}" for change in row] for row in changes.values()]
        ),
        ("base", "run", "turn", "difference", "lower", "upper", "relative_difference"),
        [
            (base.name, name, turn, change.difference, *change.interval, change.relative)
            for name, row in changes.items()
            for turn, change in enumerate(row)
        ],
    )


def usage_table(runs: Sequence[Run]) -> Table:
    """Tokens and costs of each run."""
    shown = ("responses", "tokens", "tokens a response", "at turn 0", "at the last turn", "cut off %", "cost $",
             "$ a problem")  # fmt: skip
    columns, data = [], []
    for run in runs:
        total = _sum(run.usage)
        per_response = None if total.tokens is None or not total.responses else total.tokens / total.responses
        first, last = (_tokens_per_response(run.usage[turn]) for turn in (0, -1))
        cut_off = None if total.cut_off is None or not total.responses else total.cut_off / total.responses
        cost = _ABSENT if total.cost is None else f"{total.cost:.2f}" + (" or more" if total.unpriced else "")
        per_problem = _ABSENT if total.cost is None else f"{total.cost / len(run.problems):.4f}"
        columns.append([f"{total.responses:,}", _number(total.tokens), _number(per_response), _number(first),
                     _number(last), _percent(cut_off), cost, per_problem])  # fmt: skip
        data += [
            (run.name, turn, usage.responses, usage.tokens, usage.cut_off, usage.cost, usage.unpriced)
            for turn, usage in enumerate(run.usage)
        ]
    return Table(
        "usage",
        'Generated tokens, responses cut off at a token limit, and cost in US dollars where the records have it ("or'
        ' more": some responses have no recorded cost).',
        ["", *(run.name for run in runs)],
        list(zip(shown, *columns, strict=True)),
        ("run", "turn", "responses", "completion_tokens", "cut_off", "cost_dollars", "without_cost"),
        data,
    )  # fmt: skip


def hacking_table(events: Mapping[str, Sequence[HackingEvent]]) -> Table:
    """Hacking events of each run and their categories."""
    columns, data = [], []
    for name, of_run in events.items():
        counts = count_categories(of_run)
        judged = len(of_run) - counts["not judged"]
        trajectories = len({(event.problem, event.sample) for event in of_run})
        problems = len({event.problem for event in of_run})
        shown = [
            f"{count} ({100 * count / judged:.0f} %)" if judged and category != "not judged" else str(count)
            for category, count in counts.items()
        ]
        columns.append([str(len(of_run)), str(trajectories), str(problems), *shown])
        data.append((name, len(of_run), trajectories, problems, *counts.values()))
    return Table(
        "hacking",
        "Hacking events (a changed program that passes the perturbed test it was shown), the trajectories and problems"
        " that have any, and the LLM judge's categories with their share of the judged events.",
        ["", *events],
        list(zip(("events", "trajectories", "problems", *CATEGORIES), *columns, strict=True)),
        ("run", "events", "trajectories", "problems", *(category.replace(" ", "_") for category in CATEGORIES)),
        data,
    )


def _rows_by_turn(columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """One row a turn from one column a run, which may be of different lengths."""
    return [[str(turn), *row] for turn, row in enumerate(zip_longest(*columns, fillvalue=""))]


def _sum(usage: Sequence[TurnUsage]) -> TurnUsage:
    def known(values: Sequence[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        return sum(present) if present else None

    tokens, cut_off = known([row.tokens for row in usage]), known([row.cut_off for row in usage])
    return TurnUsage(
        sum(row.responses for row in usage),
        None if tokens is None else int(tokens),
        None if cut_off is None else int(cut_off),
        known([row.cost for row in usage]),
        sum(row.unpriced for row in usage),
    )


def _tokens_per_response(usage: TurnUsage) -> float | None:
    return None if usage.tokens is None or not usage.responses else usage.tokens / usage.responses


def _percent(share: float | None) -> str:
    return _ABSENT if share is None else f"{100 * share:.1f}"


def _interval(bounds: tuple[float, float]) -> str:
    return f"{100 * bounds[0]:.0f}-{100 * bounds[1]:.0f}"


def _points(change: Change) -> str:
    lower, upper = change.interval
    mark = "*" if change.clear else ""
    return f"{_signed(100 * change.difference)}{mark} ({_signed(100 * lower)} to {_signed(100 * upper)})"


def _relative(share: float | None) -> str:
    return _ABSENT if share is None else f"{_signed(100 * share)} %"


def _signed(value: float) -> str:
    """One decimal with a sign; a zero has none."""
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text


def _number(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:,.0f}"
