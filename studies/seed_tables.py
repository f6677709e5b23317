"""The tables of a comparison of methods over several seeds, and the page that they stand in.

A page of results has tables between two marks of a markdown file, whose other text is kept. CSV files and plots lie in
a folder beside the page, with the page's name. Nothing here knows where runs lie.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.report.tables import Table, to_csv, to_markdown
from cobalt.rollout.evaluate import sample_metrics
from cobalt.rollout.protocols import Outcomes
from cobalt.stage.errors import UserError, system_errors
from studies.recoverability import recoverability
from studies.seeds import Estimate, Gain, SeedRuns, gain, moves, pooled, run_differences

Draw = Callable[[Path], None]
"""Draws a plot into a file."""

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
        estimates = [pooled(runs, turn) for turn in range(last + 1)]
        by_seed = [[runs[seed].metrics[turn].pass_at_1 for seed in seeds] for turn in range(last + 1)]
        changes = [cell for turn in starts for cell in gain_cells(gain(runs, turn, runs, last))]
        ends = " / ".join(f"{100 * share:.1f}" for share in by_seed[last])
        cells.append([method, *(_share(estimates[turn]) for turn in shown), *changes, ends, *extra.get(method, ())])
        for turn, (estimate, each) in enumerate(zip(estimates, by_seed, strict=True)):
            data.append((method, turn, estimate.mean, estimate.lower, estimate.upper, *each))
    heads = [f"turn {turn}" for turn in shown]
    heads += [head for turn in starts for head in (f"{turn} to {last}", "over runs")]
    return Table(
        name,
        caption + " Pass@1 on hidden tests of test problems in per cent, with its 95 % interval; changes to the last"
        f" turn in points, from the first one and from the last one in training, paired over problems. {_CAPTION}",
        ["", *heads, f"turn {last}, {seeds_named(seeds)}", *extra.get("", ())],
        cells,
        ("method", "turn", "pass_at_1", "lower", "upper", *(f"seed_{seed}" for seed in seeds)),
        data,
    )


def gain_table(name: str, rows: Mapping[str, SeedRuns], base: str) -> Table:
    """The method `base` against every other, at the first turn, at turn 3 (the paper's t=3) and at the last turn."""
    last = max(len(run.metrics) for run in rows[base].values()) - 1
    turns = sorted({0, min(3, last), last})
    cells, data = [], []
    for method, runs in rows.items():
        if method == base:
            continue
        gains = {turn: gain(runs, turn, rows[base], turn) for turn in turns}
        by_seed = " / ".join(f"{100 * one:+.1f}" for one in run_differences(runs, last, rows[base], last))
        cells.append([f"{base} minus {method}", *(cell for one in gains.values() for cell in gain_cells(one)), by_seed])
        for turn, one in gains.items():
            bounds = (None, None) if one.runs is None else (one.runs.lower, one.runs.upper)
            data.append((method, turn, one.problems.mean, one.problems.lower, one.problems.upper, *bounds))
    heads = [head for turn in turns for head in (f"turn {turn}", "over runs")]
    return Table(
        name,
        f"Difference of {base} to the other methods in Pass@1, in points, paired over problems. {_CAPTION}",
        ["", *heads, f"turn {last}, {seeds_named(sorted(rows[base]))}"],
        cells,
        ("method", "turn", "difference", "lower", "upper", "runs_lower", "runs_upper"),
        data,
    )


def moves_table(evaluations: Mapping[str, Sequence[Path]]) -> Table:
    """Repair rate, repeat rate and stay-right rate by turn."""
    cells, data = [], []
    fewest = sys.maxsize
    for method, files in evaluations.items():
        cells.append([method])
        for turn, move in enumerate(moves(files), 1):
            fewest = min(fewest, move["wrong"], move["right"])
            pairs = (("repaired", "wrong"), ("repeated", "wrong"), ("stayed", "right"))
            rates = [move[part] / move[whole] if move[whole] else None for part, whole in pairs]
            cells[-1].append(" / ".join("n/a" if rate is None else f"{100 * rate:.1f}" for rate in rates))
            *others, stays = rates
            spoils = None if stays is None else 1 - stays
            data.append((method, turn, move["wrong"], *others, move["right"], stays, spoils))
    return Table(
        "moves",
        "Repaired / repeated / stays right, in per cent. Of the programs that are wrong at the turn before, the share"
        " that is right at this turn (repaired), and the share that is written again without a change (repeated); of"
        f" those that are right, the share that is right again. Each is of {fewest} programs or more (moves.csv), so"
        f" that its 95 % interval over problems is at most {98 / math.sqrt(max(1, fewest)):.0f} points to each side."
        " What other runs would give is not known.",
        ["into turn", *(str(turn) for turn in range(1, max(map(len, cells))))],
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
        change = gain(rows[method], 0, rows[method], last).problems
        tempted = "n/a" if turns is None else f"{turns:,}"
        cells.append([method, _share(first), _share(final), points(change), str(events), tempted])
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
    rows = [(name, *estimate) for name, files in collections.items() for estimate in recoverability(files)]
    return Table(
        "recoverability",
        "The advantage of a wrong program over a right one of the same problem: -1 if a mistake costs its own turn"
        " alone (studies/recoverability.py has the method and its limits). On training problems that have both"
        " right and wrong programs at that turn after the same earlier outcomes, so that repairs are more frequent than"
        " on all test problems. Intervals are over problems; what other runs would give is not known.",
        ["trajectories of", "problems", "right next, after right, %", "after wrong, %", "advantage"],
        [
            [
                *(f"{name}, turn {turn}", str(problems), f"{100 * right:.1f}", f"{100 * wrong:.1f}"),
                f"{a.mean:.2f} ({a.lower:.2f} to {a.upper:.2f})",
            ]
            for name, turn, problems, right, wrong, a in rows
        ],
        ("policy", "turn", "problems", "next_after_right", "next_after_wrong", "advantage", "lower", "upper"),
        [(*figures, a.mean, a.lower, a.upper) for *figures, a in rows],
    )


def samples_table(scores: Mapping[str, Sequence[Outcomes]]) -> Table:
    """Pass@k of first programs over all problems and by difficulty, and how many different programs there are.

    `scores` has the problems of all seeds by method.
    """
    metrics = {method: sample_metrics(of_method) for method, of_method in scores.items()}
    columns = [f"pass@{k}, {group.group}" for group in next(iter(metrics.values())) for k in group.pass_at]
    shares = {
        method: [_share(Estimate(one.value, *one.interval)) for group in groups for one in group.pass_at.values()]
        for method, groups in metrics.items()
    }
    return Table(
        "samples",
        "First programs on test problems, unbiased pass@k in per cent with its 95 % interval over problems, of all and"
        " by difficulty; different programs of a problem, by normalised syntax tree.",
        ["", *columns, "different"],
        [[method, *shares[method], f"{groups[0].distinct.value:.1f}"] for method, groups in metrics.items()],
        ("method", "problems", "count", "k", "pass_at_k", "lower", "upper", "different_programs"),
        [
            (method, group.group, group.problems, k, mean.value, *mean.interval, group.distinct.value)
            for method, groups in metrics.items()
            for group in groups
            for k, mean in group.pass_at.items()
        ],
    )


def ceiling_table(ceilings: Sequence[Mapping[str, Any]]) -> Table:
    """Results of perfect players on test problems: the mean over worlds, each with its ceilings (`cobalt.pocket`)."""
    turns = range(len(ceilings[0]["repair"]))
    by_player = {
        "perfect reader, no feedback": [[one["single_turn"]] * len(turns) for one in ceilings],
        "blind repairer": [one["blind"] for one in ceilings],
        "perfect repairer": [one["repair"] for one in ceilings],
    }
    means = {name: [sum(each) / len(each) for each in zip(*rows, strict=True)] for name, rows in by_player.items()}
    return Table(
        "ceilings",
        "Ceilings of the test problems in per cent, the mean over the seeds' worlds (docs/pocket.md).",
        ["", *(f"turn {turn}" for turn in turns)],
        [[name, *(f"{100 * share:.1f}" for share in shares)] for name, shares in means.items()],
        ("player", "turn", "share"),
        [(name, turn, share) for name, shares in means.items() for turn, share in enumerate(shares)],
    )


def seeds_named(seeds: Sequence[int]) -> str:
    """The words `seed 2`, or `seeds 0, 1` for several."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def gain_cells(one: Gain) -> tuple[str, str]:
    """A difference in points with its interval over problems, and its interval over runs with what both tell."""
    shown = "one run" if one.runs is None else f"{100 * one.runs.lower:+.1f} to {100 * one.runs.upper:+.1f}"
    return points(one.problems), shown if one.known else f"{shown}, cannot tell"


def points(estimate: Estimate) -> str:
    """A difference in points with its interval, and * where this leaves zero out."""
    mark = "*" if estimate.clear else ""
    return f"{100 * estimate.mean:+.1f}{mark} ({100 * estimate.lower:+.1f} to {100 * estimate.upper:+.1f})"


def _share(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f} ({100 * estimate.lower:.0f} to {100 * estimate.upper:.0f})"


def marks(module: str) -> tuple[str, str]:
    """The lines that a module's tables stand between."""
    return f"<!-- begin: {module} -->", f"<!-- end: {module} -->"


def write_page(
    output: Path, module: str, tables: Sequence[tuple[str, Table]], plots: Mapping[str, Draw] | None = None
) -> None:
    """Write a module's tables, each under its heading, and the plot that follows a table, by the table's name.

    Raises UserError if the page is there and has no marks of the module, or a file cannot be read or written.
    """
    begin, end = marks(module)
    side, parts = output.with_suffix(""), []
    with system_errors(f"cannot write {output} and {side}"):
        text = output.read_text(encoding="utf-8") if output.exists() else f"# Results\n\n{begin}\n{end}\n"
        before, has_begin, rest = text.partition(begin)
        _, has_end, after = rest.partition(end)
        if not has_begin or not has_end:
            raise UserError(f"{output} has no lines {begin!r} and {end!r}: write them where the tables are to go")
        side.mkdir(parents=True, exist_ok=True)
        for heading, table in tables:
            (side / f"{table.name}.csv").write_text(to_csv(table), encoding="utf-8")
            parts.append(f"### {heading}\n\n{to_markdown(table)}")
            if plots and table.name in plots:
                plots[table.name](side / f"{table.name}.png")
                parts.append(f"![{heading}]({side.name}/{table.name}.png)\n")
        output.write_text("\n".join([before + begin, "", *parts, end + after]), encoding="utf-8")
