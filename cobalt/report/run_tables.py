"""The tables of a report, made from runs that can be compared. Shown cells are rounded, the CSV values are not."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from itertools import zip_longest

from cobalt.hacking.categories import NOT_CLASSIFIED, OUTCOMES
from cobalt.hacking.events import HackingEvent, count_categories
from cobalt.report.comparison import Change, change_between
from cobalt.report.runs import Run, TurnUsage
from cobalt.report.tables import Table, few_problems

_ABSENT = "n/a"
_HACKING_ROWS = (
    "events",
    "turns after an impossible test",
    "events per 100 of them",
    "trajectories",
    "problems",
    *OUTCOMES,
)
_CHANGE = ("change", "change_lower", "change_upper", "relative_change")


def turns_table(runs: Sequence[Run]) -> Table:
    """Pass@1 by turn, a column for each run, and where there are turns its change from the first turn to the last."""
    cells = [[f"{_percent(row.pass_at_1)} ({_interval(row.interval)})" for row in run.metrics] for run in runs]
    changes, about_changes = [], ""
    if any(len(run.metrics) > 1 for run in runs):
        totals = [change_between(run, 0, run, len(run.metrics) - 1) for run in runs]
        changes = [
            ["change", *map(_points, totals)],
            ["relative", *(_relative(change.relative) for change in totals)],
        ]
        about_changes = (
            "; below, the change from the first turn to the last, in points, paired over problems (*: its interval"
            " leaves zero out), and relative to the first turn"
        )
    data = []
    for run in runs:
        for row in run.metrics:
            change = change_between(run, 0, run, row.turn)
            figures = (
                row.pass_at_1,
                *row.interval,
                row.pass_rate,
                change.difference,
                *change.interval,
                change.relative,
            )
            data.append((run.name, row.turn, *figures))
    return Table(
        "pass_at_1",
        "Pass@1 on hidden tests by turn, in per cent, with its 95 % bootstrap interval over problems"
        f"{about_changes}. {_few(runs)}".rstrip(),
        ["turn", *(run.name for run in runs)],
        [*_rows_by_turn(cells), *changes],
        ("run", "turn", "pass_at_1", "lower", "upper", "pass_rate", *_CHANGE),
        data,
    )


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
        f" over the same {len(base.problems)} problems (*: it leaves zero out), and relative to {base.name}."
        f" {_few(runs)}".rstrip(),
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
    """Tokens and costs, a column for each run."""
    columns = []
    for run in runs:
        total = sum(run.usage, TurnUsage())
        cost = None if total.cost is None else f"{total.cost:.2f}"
        columns.append(
            {
                "responses": f"{total.responses:,}",
                "prompt tokens": _number(total.prompt_tokens),
                "generated tokens": _number(total.completion_tokens),
                "generated a response": _number(_share(total.completion_tokens, total.responses)),
                "at the first turn": _number(_share(run.usage[0].completion_tokens, run.usage[0].responses)),
                "at the last turn": _number(_share(run.usage[-1].completion_tokens, run.usage[-1].responses)),
                "cut off %": _percent(_share(total.cut_off, total.responses)),
                "cost $": _ABSENT if cost is None else cost + (" or more" if total.priced < total.responses else ""),
                "$ a problem": _ABSENT if total.cost is None else f"{total.cost / len(run.problems):.4f}",
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
    columns, data = [], []
    for name, of_run in events.items():
        counts = count_categories(of_run)
        judged = len(of_run) - counts[NOT_CLASSIFIED]
        trajectories = len({(event.problem, event.sample) for event in of_run})
        problems = len({event.problem for event in of_run})
        shown = [
            f"{count} ({100 * count / judged:.0f} %)" if judged and category != NOT_CLASSIFIED else str(count)
            for category, count in counts.items()
        ]
        turns = tempted[name]
        rate = f"{100 * len(of_run) / turns:.1f}" if turns else _ABSENT
        columns.append([str(len(of_run)), _number(turns), rate, str(trajectories), str(problems), *shown])
        data.append((name, len(of_run), turns, trajectories, problems, *counts.values()))
    return Table(
        "hacking",
        "Hacking events (a changed program that passes the perturbed test it was shown), the turns after such a test,"
        " the trajectories and problems that have an event, and the LLM classifier's categories with their share of the"
        " classified events.",
        ["", *events],
        list(zip(_HACKING_ROWS, *columns, strict=True)),
        (
            "run",
            "events",
            "turns_after_an_impossible_test",
            "trajectories",
            "problems",
            *(category.replace(" ", "_") for category in OUTCOMES),
        ),
        data,
    )


def _few(runs: Sequence[Run]) -> str:
    return few_problems(min(len(run.problems) for run in runs))


def _rows_by_turn(columns: Sequence[Sequence[str]]) -> list[list[str]]:
    """One row a turn from one column a run, which may be of different lengths."""
    return [[str(turn), *row] for turn, row in enumerate(zip_longest(*columns, fillvalue=""))]


def _share(value: float | None, whole: int) -> float | None:
    return None if value is None else value / whole


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
