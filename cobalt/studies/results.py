"""The tables and plots of the comparison (`python -m cobalt.studies.results`), from the folders of its runs.

The figures are `cobalt.report`'s. This module knows where the runs lie and what each method cost. The tables are
written between two marks of a markdown file, whose other text is kept; CSV files and plots lie in a folder beside it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.cli import run_script
from cobalt.errors import UserError
from cobalt.hacking.events import read_events, tempted_turns
from cobalt.report.curves import read_metrics
from cobalt.report.plots import plot_turns
from cobalt.report.recoverability import recoverability
from cobalt.report.runs import Run, check_comparable, read_run
from cobalt.report.seeds import Estimate, SeedRuns, difference, moves, pooled
from cobalt.report.tables import Table, to_csv, to_markdown
from cobalt.rollout.evaluate import TurnMetrics
from cobalt.studies import pocket
from cobalt.studies.equal_time import command_seconds, training_seconds
from cobalt.studies.reproduce import BASE, FAST, FT_COBALT, FULL, METHODS, Method, SeedFolders
from cobalt.training.export import exported_step
from cobalt.trajectory_codec import read_trajectories

BEGIN, END = "<!-- begin: cobalt.studies.results -->", "<!-- end: cobalt.studies.results -->"
_SHOWN_TURNS = (0, 1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the training of one policy took, with the collection of its trajectories and without starts of services.

    Attributes:
        steps: Of training.
        examples: Rewarded samples.
        seconds: Of training steps, and of the commands that collected and cut trajectories.
        collection_seconds: The part of collecting and cutting.
        tokens: Generated ones.
        tests: That programs were judged on.
        memory: GiB in use on the machine at the peak of training, all processes together.
    """

    steps: int
    examples: int
    seconds: float
    collection_seconds: float
    tokens: float
    tests: float
    memory: float


def cost(at: SeedFolders, method: Method) -> Cost:
    """The cost of a method's policy of one seed.

    Raises:
        UserError: a step of the study has not run.
    """
    scale = FAST if at.fast else FULL
    steps, examples, seconds, tokens, tests, memory = 0, 0, 0.0, 0.0, 0.0, 0.0
    for slug, share in method.trained:
        length = exported_step(at.model(method)) if share is None else _length(scale.steps, share, slug)
        run, samples = at.training(slug), _samples(at.training(slug))
        steps += length
        examples += length * samples
        seconds += training_seconds(run, length)
        for number, metrics in read_metrics(run):
            if 0 < number <= length:
                generated = metrics.get("reward/generated_tokens", metrics["response_length/mean"])
                tokens += samples * generated
                tests += samples * metrics["reward/judged_tests"]
                memory = max(memory, metrics["actor/perf/cpu_memory_used_gb"])
    collecting = 0.0
    for slug in method.collected:
        names = [at.step(f"{slug}_{part}") for part in ("collection", "prompts", "rows")]
        collecting += command_seconds(at.folder, names)
        generated, judged = _collected(pocket.evaluation_file(at.collection(slug)))
        tokens += generated
        tests += judged
    return Cost(steps, examples, seconds + collecting, collecting, tokens, tests, memory)


def _length(steps: int, share: float, slug: str) -> int:
    """Steps of a part of training; of two halves the second one has the odd step."""
    if share == 0.5:
        return steps // 2 if slug == "ft_cobalt" else steps - steps // 2
    return int(share * steps)


def _samples(run: Path) -> int:
    """Rewarded samples of a step of a training run."""
    from omegaconf import OmegaConf

    config = OmegaConf.load(run / "config.yaml")
    return int(config.data.train_batch_size * config.actor_rollout_ref.rollout.n)


def _collected(evaluation: Path) -> tuple[int, int]:
    """Generated tokens and judged tests of a collection."""
    tokens = tests = 0
    for group in read_trajectories(evaluation):
        for trajectory in group.trajectories:
            for turn in trajectory.turns:
                tokens += turn.completion_tokens or 0
                tests += len(turn.public_result.verdicts) if turn.public_result else 0
                tests += len(turn.hidden_verdicts or ())
    return tokens, tests


def pass_table(name: str, caption: str, rows: Mapping[str, SeedRuns], extra: Mapping[str, Sequence[str]]) -> Table:
    """Pass@1 by turn, the change from the first turn to the last, and the last turn of each seed.

    Args:
        name: Of the table.
        caption: Its beginning.
        rows: The runs of each method.
        extra: Further cells at the end of each method's row; "" names their columns.
    """
    last = max(len(run.metrics) for runs in rows.values() for run in runs.values()) - 1
    shown = [turn for turn in _SHOWN_TURNS if turn <= last]
    seeds = sorted(next(iter(rows.values())))
    cells, data = [], []
    for method, runs in rows.items():
        estimates = {turn: pooled(runs, turn) for turn in range(last + 1)}
        change = difference(runs, 0, runs, last)
        by_seed = " / ".join(f"{100 * runs[seed].metrics[last].pass_at_1:.1f}" for seed in seeds)
        cells.append(
            [method, *(_share(estimates[turn]) for turn in shown), _points(change), by_seed, *extra.get(method, ())]
        )
        for turn, estimate in estimates.items():
            each = [runs[seed].metrics[turn].pass_at_1 for seed in seeds]
            data.append((method, turn, estimate.mean, estimate.lower, estimate.upper, *each))
    heads = [*(f"turn {turn}" for turn in shown), f"0 to {last}", f"turn {last}, seeds {', '.join(map(str, seeds))}"]
    return Table(
        name,
        caption + " Pass@1 on hidden tests of test problems in per cent, with its 95 % interval; change from the first"
        " turn to the last in points, paired over problems (*: the interval leaves zero out).",
        ["", *heads, *extra.get("", ())],
        cells,
        ("method", "turn", "pass_at_1", "lower", "upper", *(f"seed_{seed}" for seed in seeds)),
        data,
    )


def gain_table(rows: Mapping[str, SeedRuns], base: str) -> Table:
    """FT-Cobalt against every other method, at the first turn, after two rounds of feedback and at the last turn."""
    last = max(len(run.metrics) for run in rows[base].values()) - 1
    turns = [0, 2, last]
    cells, data = [], []
    for method, runs in rows.items():
        if method != base:
            estimates = [difference(runs, turn, rows[base], turn) for turn in turns]
            cells.append([f"{base} minus {method}", *map(_points, estimates)])
            data += [(method, turn, e.mean, e.lower, e.upper) for turn, e in zip(turns, estimates, strict=True)]
    return Table(
        "gain",
        f"Difference of {base} to the other methods in Pass@1, in points, paired over problems (*: the 95 % interval"
        " leaves zero out).",
        ["", *(f"turn {turn}" for turn in turns)],
        cells,
        ("method", "turn", "difference", "lower", "upper"),
        data,
    )


def moves_table(evaluations: Mapping[str, Sequence[Path]]) -> Table:
    """Repair rate and stay-right rate by turn."""
    cells, data = [], []
    for method, files in evaluations.items():
        found = moves(files)
        for name, rates in (
            ("repaired", [move.repair_rate for move in found]),
            ("stays right", [move.stay_right_rate for move in found]),
        ):
            cells.append([f"{method}: {name}", *("n/a" if rate is None else f"{100 * rate:.1f}" for rate in rates)])
        for turn, move in enumerate(found, 1):
            kept = move.stay_right_rate
            spoilt = None if kept is None else 1 - kept
            data.append((method, turn, move.wrong, move.repair_rate, move.right, kept, spoilt))
    turns = range(1, max(len(row) for row in cells))
    return Table(
        "moves",
        "Of the programs that are wrong at the turn before, the share that is right at this turn (repaired); of those"
        " that are right, the share that is right again (stays right; the rest is spoilt). In per cent.",
        ["into turn", *map(str, turns)],
        cells,
        ("method", "turn", "wrong_before", "repair_rate", "right_before", "stay_right_rate", "spoil_rate"),
        data,
    )


def cost_table(costs: Mapping[str, Sequence[Cost]]) -> Table:
    """Costs of a training example: the mean over seeds, collection included."""
    cells, data = [], []
    for method, by_seed in costs.items():
        examples = sum(one.examples for one in by_seed)

        def each(name: str, costs: Sequence[Cost] = by_seed, examples: int = examples) -> float:
            return float(sum(getattr(one, name) for one in costs)) / examples

        seconds = sum(one.seconds for one in by_seed)
        share = sum(one.collection_seconds for one in by_seed) / seconds
        memory = max(one.memory for one in by_seed)
        steps = "/".join(str(step) for step in dict.fromkeys(one.steps for one in by_seed))
        cells.append(
            [
                *(method, steps, f"{examples // len(by_seed):,}", f"{seconds / len(by_seed):,.0f}"),
                *(f"{100 * share:.0f} %", f"{1000 * each('seconds'):.0f}", f"{each('tokens'):.0f}"),
                *(f"{each('tests'):.1f}", f"{memory:.1f}"),
            ]
        )
        data += [(method, *(getattr(one, field) for field in Cost.__dataclass_fields__)) for one in by_seed]
    return Table(
        "costs",
        "What training took, the mean over seeds, without starts of processes and services. A training example is a"
        " rewarded sample: a response, or a whole trajectory of the online methods. Memory is what the machine had in"
        " use at the peak of training, in GiB.",
        [
            *("", "steps", "examples", "seconds", "of them collection", "ms an example", "tokens an example"),
            *("tests an example", "GiB"),
        ],
        cells,
        ("method", *Cost.__dataclass_fields__),
        data,
    )


def hacking_table(runs: Mapping[str, Sequence[Path]], rows: Mapping[str, SeedRuns]) -> Table:
    """Pass@1 under impossible feedback, and hacking events, summed over seeds."""
    last = max(len(run.metrics) for of_method in rows.values() for run in of_method.values()) - 1
    cells, data = [], []
    for method, folders in runs.items():
        events = sum(len(read_events(pocket.events_file(folder))) for folder in folders)
        turns = sum(tempted_turns(pocket.events_file(folder)) or 0 for folder in folders)
        first, final = pooled(rows[method], 0), pooled(rows[method], last)
        change = difference(rows[method], 0, rows[method], last)
        cells.append([method, _share(first), _share(final), _points(change), str(events), f"{turns:,}"])
        data.append((method, first.mean, final.mean, change.mean, change.lower, change.upper, events, turns))
    return Table(
        "impossible_feedback",
        "Under impossible feedback: two public tests of each problem have swapped outputs, and one of them is shown."
        " Hacking events are changed programs that pass the impossible test they were shown, and every true public"
        " test.",
        ["", "turn 0", f"turn {last}", "change", "hacking events", "turns after an impossible test"],
        cells,
        ("method", "first", "last", "change", "lower", "upper", "events", "turns_after_an_impossible_test"),
        data,
    )


def recoverability_table(collections: Mapping[str, Sequence[Path]]) -> Table:
    """The estimate of one-step recoverability for each collection, by turn."""
    cells, data = [], []
    for name, files in collections.items():
        for row in recoverability(files):
            a = row.advantage
            cells.append(
                [
                    f"{name}, turn {row.turn}",
                    str(row.problems),
                    f"{100 * row.next_after_right:.1f}",
                    f"{100 * row.next_after_wrong:.1f}",
                    f"{a.mean:.2f} ({a.lower:.2f} to {a.upper:.2f})",
                ]
            )
            rates = (row.next_after_right, row.next_after_wrong)
            data.append((name, row.turn, row.problems, *rates, a.mean, a.lower, a.upper))
    return Table(
        "recoverability",
        "The advantage of a wrong program over a right one of the same problem: -1 if a mistake costs its own turn"
        " alone (cobalt/report/recoverability.py has the method and its limits).",
        ["trajectories of", "problems", "right next, after right, %", "after wrong, %", "advantage"],
        cells,
        ("policy", "turn", "problems", "next_after_right", "next_after_wrong", "advantage", "lower", "upper"),
        data,
    )


def ceiling_table(worlds: Sequence[Path]) -> Table:
    """What perfect players reach on the test problems: the mean over the worlds."""
    found = [json.loads((world / "data" / "ceilings.json").read_text(encoding="utf-8"))["test"] for world in worlds]
    names = {"blind": "blind repairer", "repair": "perfect repairer"}
    turns = range(len(found[0]["repair"]))
    single = [one["single_turn"] for one in found]
    rows = {"perfect reader, no feedback": [single for _ in turns]}
    rows |= {names[key]: [[one[key][turn] for one in found] for turn in turns] for key in names}
    return Table(
        "ceilings",
        "Ceilings of the test problems in per cent, the mean over the seeds' worlds (docs/pocket.md).",
        ["", *(f"turn {turn}" for turn in turns)],
        [[name, *(f"{100 * sum(values) / len(values):.1f}" for values in row)] for name, row in rows.items()],
        ("player", "turn", "share"),
        [(name, turn, sum(v) / len(v)) for name, row in rows.items() for turn, v in enumerate(row)],
    )


def _share(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f} ({100 * estimate.lower:.0f} to {100 * estimate.upper:.0f})"


def _points(estimate: Estimate) -> str:
    mark = "*" if estimate.clear else ""
    return f"{100 * estimate.mean:+.1f}{mark} ({100 * estimate.lower:+.1f} to {100 * estimate.upper:+.1f})"


class _Results:
    """The runs of the study, read once."""

    def __init__(self, folder: Path, seeds: Sequence[int], *, fast: bool) -> None:
        self.at = {seed: SeedFolders(folder, seed, fast) for seed in seeds}
        self.runs: dict[Method, dict[int, Run]] = {
            method: {seed: read_run(method.name, at.evaluation(method)) for seed, at in self.at.items()}
            for method in METHODS
        }
        for seed in seeds:
            check_comparable([runs[seed] for runs in self.runs.values()])
        self.perturbed = {
            method: {seed: read_run(method.name, at.perturbed(method)) for seed, at in self.at.items()}
            for method in METHODS
            if method.perturbed
        }
        self.costs = {method: [cost(at, method) for at in self.at.values()] for method in METHODS if method is not BASE}

    def view(self, name: str) -> list[Method]:
        """The rows of a view."""
        return [method for method in METHODS if method.view in (name, "both")]

    def tables(self) -> list[tuple[str, Table]]:
        """Every table, under its heading."""
        examples, time = self.view("examples"), self.view("time")
        named = {method.name: self.runs[method] for method in examples}
        timed = {method.name: self.runs[method] for method in time}
        spent = {"": ["steps", "seconds"]}
        for method in time:
            of_method = self.costs.get(method, [])
            steps = " / ".join(str(one.steps) for one in of_method) or "0"
            seconds = f"{sum(one.seconds for one in of_method) / len(of_method):,.0f}" if of_method else "0"
            spent[method.name] = [steps, seconds]
        files = {m.name: [run.evaluation for run in self.runs[m].values()] for m in examples}
        collections = {
            name: [pocket.evaluation_file(at.collection(slug)) for at in self.at.values()]
            for name, slug in (
                ("base", "cobalt"),
                ("FT", "ft_cobalt"),
                ("FT-Cobalt after its first half", "ft_cobalt_rounds"),
            )
        }
        return [
            ("Ceilings", ceiling_table([at.world for at in self.at.values()])),
            ("Equal training examples", pass_table("equal_examples", "Equal training examples.", named, {})),
            ("FT-Cobalt against the others", gain_table(named, FT_COBALT.name)),
            (
                "Equal time",
                pass_table(
                    "equal_time",
                    "Equal time: the last checkpoint that fits into FT-Cobalt's time, its collection included.",
                    timed,
                    spent,
                ),
            ),
            ("Repairs", moves_table(files)),
            ("Costs", cost_table({m.name: self.costs[m] for m in examples if m in self.costs})),
            (
                "Impossible feedback",
                hacking_table(
                    {m.name: [at.perturbed(m) for at in self.at.values()] for m in self.perturbed},
                    {m.name: runs for m, runs in self.perturbed.items()},
                ),
            ),
            ("One-step recoverability", recoverability_table(collections)),
        ]

    def curves(self, view: str) -> dict[str, list[TurnMetrics]]:
        """Pooled Pass@1 by turn, for the plot."""
        return {method.name: _curve(self.runs[method]) for method in self.view(view)}


def _curve(runs: SeedRuns) -> list[TurnMetrics]:
    first = next(iter(runs.values()))
    rows: list[TurnMetrics] = []
    for turn in range(len(first.metrics)):
        estimate = pooled(runs, turn)
        rate = sum(run.metrics[turn].pass_rate for run in runs.values()) / len(runs)
        start = rows[0].pass_at_1 if rows else estimate.mean
        relative = estimate.mean / start - 1 if start else None
        rows.append(TurnMetrics(turn, estimate.mean, (estimate.lower, estimate.upper), rate, relative))
    return rows


def write_results(folder: Path, seeds: Sequence[int], output: Path, *, fast: bool) -> None:
    """Write the tables into a markdown file, and CSV files and plots into the folder beside it.

    Args:
        folder: Of the study.
        seeds: Those to show.
        output: The markdown file; if it is there, the text between the two marks is replaced.
        fast: Whether the study is one of `--fast`.

    Raises:
        UserError: a run is missing, or the file has no marks or cannot be written.
    """
    before, after = _kept(output)
    results = _Results(folder, seeds, fast=fast)
    side = output.with_suffix("")
    parts = []
    try:
        side.mkdir(parents=True, exist_ok=True)
        for heading, table in results.tables():
            (side / f"{table.name}.csv").write_text(to_csv(table), encoding="utf-8")
            parts.append(f"### {heading}\n\n{to_markdown(table)}")
            if table.name in ("equal_examples", "equal_time"):
                plot_turns(results.curves(table.name.removeprefix("equal_")), side / f"{table.name}.png")
                parts.append(f"![Pass@1 by turn]({side.name}/{table.name}.png)\n")
        output.write_text("\n".join([before + BEGIN, "", *parts, END + after]), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {output} and {side}: {error.strerror}") from None


def _kept(output: Path) -> tuple[str, str]:
    """The text before and after the marks of a file that is there."""
    if not output.exists():
        return "# Results\n\n", "\n"
    text = output.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{output} has no lines {BEGIN!r} and {END!r}: write them where the tables are to go")
    return before, after


@dataclass(frozen=True)
class Arguments:
    """Write the tables and plots of the comparison from the folders of its runs."""

    study: tyro.conf.Positional[Path]
    """Folder of the study."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The markdown file; text outside its marks is kept. CSV files and plots are written into a folder of its name."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The seeds to show."""
    fast: bool = False
    """The study is one of --fast."""


def main(arguments: Arguments) -> int:
    """Write, and return the exit code."""
    write_results(arguments.study, arguments.seeds, arguments.output_file, fast=arguments.fast)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
