"""The tables of a comparison of methods over several seeds. Nothing here knows where runs lie."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.report.tables import Table
from cobalt.rollout.evaluate_single import sample_metrics
from cobalt.rollout.protocols import Outcomes
from studies.recoverability import recoverability
from studies.seeds import Estimate, SeedRuns, difference, moves, over_runs, pooled, run_differences, sign_known

_SHOWN_TURNS = (0, 1, 2, 3, 4, 8)

_CAPTION = (
    "*: the 95 % interval leaves zero out. It says how much other problems would change the figure; the interval over"
    " runs (Student's, of the seeds' own differences) how much other runs would, each with a world, a seed model and a"
    " training of its own. Cannot tell: one of the two holds zero, or there is one run, or the runs are"
    " equal by chance."
)

_TRAINED_TURNS = 3
"""Programs of a trajectory in training: what comes after them is beyond what policies were trained on."""


def pass_table(name: str, caption: str, rows: Mapping[str, SeedRuns], extra: Mapping[str, Sequence[str]]) -> Table:
    """Pass@1 by turn, the changes to the last turn, over problems and over runs, and the last turn of each seed.

    `caption` is the beginning of the table's. `rows` and `extra` have the runs of each method and further cells at the
    end of its row; in `extra`, "" names their columns.
    """
    last = max(len(run.metrics) for runs in rows.values() for run in runs.values()) - 1
    shown = [turn for turn in _SHOWN_TURNS if turn <= last]
    starts = [turn for turn in (0, _TRAINED_TURNS - 1) if turn < last]
    seeds = sorted(next(iter(rows.values())))
    cells, data = [], []
    for method, runs in rows.items():
        estimates = {turn: pooled(runs, turn) for turn in range(last + 1)}
        changes = [cell for turn in starts for cell in gain_cells(*_gain(runs, turn, runs, last))]
        by_seed = " / ".join(f"{100 * runs[seed].metrics[last].pass_at_1:.1f}" for seed in seeds)
        cells.append([method, *(_share(estimates[turn]) for turn in shown), *changes, by_seed, *extra.get(method, ())])
        for turn, estimate in estimates.items():
            each = [runs[seed].metrics[turn].pass_at_1 for seed in seeds]
            data.append((method, turn, estimate.mean, estimate.lower, estimate.upper, *each))
    heads = [f"turn {turn}" for turn in shown]
    heads += [head for turn in starts for head in (f"{turn} to {last}", "over runs")]
    heads += [f"turn {last}, {seeds_named(seeds)}"]
    return Table(
        name,
        caption + " Pass@1 on hidden tests of test problems in per cent, with its 95 % interval; changes to the last"
        f" turn in points, from the first one and from the last one in training, paired over problems. {_CAPTION}",
        ["", *heads, *extra.get("", ())],
        cells,
        ("method", "turn", "pass_at_1", "lower", "upper", *(f"seed_{seed}" for seed in seeds)),
        data,
    )


def gain_table(name: str, rows: Mapping[str, SeedRuns], base: str) -> Table:
    """The method `base` against every other, at the first turn, at turn 3 (the paper's t=3) and at the last turn."""
    last = max(len(run.metrics) for run in rows[base].values()) - 1
    turns = sorted({0, min(3, last), last})
    cells, data = [], []
    seeds = sorted(rows[base])
    for method, runs in rows.items():
        if method != base:
            gains = [_gain(runs, turn, rows[base], turn) for turn in turns]
            by_seed = " / ".join(f"{100 * gain:+.1f}" for gain in run_differences(runs, last, rows[base], last))
            cells.append([f"{base} minus {method}", *(cell for gain in gains for cell in gain_cells(*gain)), by_seed])
            for turn, (over_problems, runs_of) in zip(turns, gains, strict=True):
                bounds = (None, None) if runs_of is None else (runs_of.lower, runs_of.upper)
                data.append((method, turn, over_problems.mean, over_problems.lower, over_problems.upper, *bounds))
    return Table(
        name,
        f"Difference of {base} to the other methods in Pass@1, in points, paired over problems. {_CAPTION}",
        [
            "",
            *(head for turn in turns for head in (f"turn {turn}", "over runs")),
            f"turn {last}, {seeds_named(seeds)}",
        ],
        cells,
        ("method", "turn", "difference", "lower", "upper", "runs_lower", "runs_upper"),
        data,
    )


def moves_table(evaluations: Mapping[str, Sequence[Path]]) -> Table:
    """Repair rate, repeat rate and stay-right rate by turn."""
    cells, data = [], []
    fewest = sys.maxsize
    for method, files in evaluations.items():
        shown = [method]
        for turn, move in enumerate(moves(files), 1):
            fewest = min(fewest, move["wrong"], move["right"])
            pairs = (("repaired", "wrong"), ("repeated", "wrong"), ("stayed", "right"))
            rates = [move[part] / move[whole] if move[whole] else None for part, whole in pairs]
            shown.append(" / ".join("n/a" if rate is None else f"{100 * rate:.1f}" for rate in rates))
            *others, stays = rates
            data.append(
                (method, turn, move["wrong"], *others, move["right"], stays, stays if stays is None else 1 - stays)
            )
        cells.append(shown)
    turns = range(1, max(len(row) for row in cells))
    return Table(
        "moves",
        "Repaired / repeated / stays right, in per cent. Of the programs that are wrong at the turn before, the share"
        " that is right at this turn (repaired), and the share that is written again without a change (repeated); of"
        f" those that are right, the share that is right again. Each is of {fewest} programs or more (moves.csv), so"
        f" that its 95 % interval over problems is at most {98 / math.sqrt(max(1, fewest)):.0f} points to each side."
        " What other runs would give is not known.",
        ["into turn", *map(str, turns)],
        cells,
        (
            *("method", "turn", "wrong_before", "repair_rate", "repeat_rate"),
            *("right_before", "stay_right_rate", "spoil_rate"),
        ),
        data,
    )


def impossible_table(rows: Mapping[str, SeedRuns], counts: Mapping[str, tuple[int, int | None]]) -> Table:
    """Pass@1 under impossible feedback, and hacking events.

    `counts` has of each method the events, and the turns that had one to make (None: not known), summed over seeds.
    """
    last = max(len(run.metrics) for of_method in rows.values() for run in of_method.values()) - 1
    cells, data = [], []
    for method, (events, turns) in counts.items():
        first, final = pooled(rows[method], 0), pooled(rows[method], last)
        change = difference(rows[method], 0, rows[method], last)
        tempted = "n/a" if turns is None else f"{turns:,}"
        cells.append([method, _share(first), _share(final), _points(change), str(events), tempted])
        data.append((method, first.mean, final.mean, change.mean, change.lower, change.upper, events, turns))
    return Table(
        "impossible_feedback",
        "Under impossible feedback: two public tests of each problem have swapped outputs, and one of them is shown."
        " Hacking events are changed programs that pass the impossible test they were shown, and every true public"
        " test. Intervals are over problems; what other runs would give is not known.",
        ["", "turn 0", f"turn {last}", "change", "hacking events", "turns after an impossible test"],
        cells,
        ("method", "first", "last", "change", "lower", "upper", "events", "turns_after_an_impossible_test"),
        data,
    )


def recoverability_table(collections: Mapping[str, Sequence[Path]]) -> Table:
    """The estimate of one-step recoverability for each collection, by turn."""
    cells, data = [], []
    for name, files in collections.items():
        for turn, problems, *rates, a in recoverability(files):
            shares = [f"{100 * rate:.1f}" for rate in rates]
            cells.append(
                [f"{name}, turn {turn}", str(problems), *shares, f"{a.mean:.2f} ({a.lower:.2f} to {a.upper:.2f})"]
            )
            data.append((name, turn, problems, *rates, a.mean, a.lower, a.upper))
    return Table(
        "recoverability",
        "The advantage of a wrong program over a right one of the same problem: -1 if a mistake costs its own turn"
        " alone (studies/recoverability.py has the method and its limits). On training problems that have both"
        " right and wrong programs at that turn after the same earlier outcomes, so that repairs are more frequent than"
        " on all test problems. Intervals are over problems; what other runs would give is not known.",
        ["trajectories of", "problems", "right next, after right, %", "after wrong, %", "advantage"],
        cells,
        ("policy", "turn", "problems", "next_after_right", "next_after_wrong", "advantage", "lower", "upper"),
        data,
    )


def samples_table(scores: Mapping[str, Sequence[Outcomes]]) -> Table:
    """Pass@k of first programs over all problems and by difficulty, and how many different programs there are.

    `scores` has the problems of all seeds by method.
    """
    cells, data = [], []
    columns: list[str] = []
    for method, of_method in scores.items():
        metrics = sample_metrics(of_method)
        columns = [f"pass@{k}, {group.group}" for group in metrics for k in group.pass_at]
        shares = [_share(Estimate(mean.value, *mean.interval)) for group in metrics for mean in group.pass_at.values()]
        cells.append([method, *shares, f"{metrics[0].distinct.value:.1f}"])
        for group in metrics:
            for k, mean in group.pass_at.items():
                data.append((method, group.group, group.problems, k, mean.value, *mean.interval, group.distinct.value))
    return Table(
        "samples",
        "First programs on test problems, unbiased pass@k in per cent with its 95 % interval over problems, of all and"
        " by difficulty; different programs of a problem, by normalised syntax tree.",
        ["", *columns, "different"],
        cells,
        ("method", "problems", "count", "k", "pass_at_k", "lower", "upper", "different_programs"),
        data,
    )


def ceiling_table(ceilings: Sequence[Mapping[str, Any]]) -> Table:
    """What perfect players reach on test problems: the mean over worlds, each with its ceilings (`datasets.pocket`)."""
    names = {"blind": "blind repairer", "repair": "perfect repairer"}
    turns = range(len(ceilings[0]["repair"]))
    single = [one["single_turn"] for one in ceilings]
    rows = {"perfect reader, no feedback": [single for _ in turns]}
    rows |= {names[key]: [[one[key][turn] for one in ceilings] for turn in turns] for key in names}
    return Table(
        "ceilings",
        "Ceilings of the test problems in per cent, the mean over the seeds' worlds (docs/pocket.md).",
        ["", *(f"turn {turn}" for turn in turns)],
        [[name, *(f"{100 * sum(values) / len(values):.1f}" for values in row)] for name, row in rows.items()],
        ("player", "turn", "share"),
        [(name, turn, sum(v) / len(v)) for name, row in rows.items() for turn, v in enumerate(row)],
    )


def seeds_named(seeds: Sequence[int]) -> str:
    """The words `seed 2`, or `seeds 0, 1` for several."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _share(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f} ({100 * estimate.lower:.0f} to {100 * estimate.upper:.0f})"


def _gain(base: SeedRuns, base_turn: int, other: SeedRuns, other_turn: int) -> tuple[Estimate, Estimate | None]:
    """A difference over problems and over runs; None for a single run."""
    over_problems = difference(base, base_turn, other, other_turn)
    return over_problems, over_runs(run_differences(base, base_turn, other, other_turn))


def gain_cells(over_problems: Estimate, runs: Estimate | None) -> tuple[str, str]:
    """A difference in points with its interval over problems, and its interval over runs with what both tell."""
    shown = "one run" if runs is None else f"{100 * runs.lower:+.1f} to {100 * runs.upper:+.1f}"
    return _points(over_problems), shown if sign_known(over_problems, runs) else f"{shown}, cannot tell"


def _points(estimate: Estimate) -> str:
    mark = "*" if estimate.clear else ""
    return f"{100 * estimate.mean:+.1f}{mark} ({100 * estimate.lower:+.1f} to {100 * estimate.upper:+.1f})"
