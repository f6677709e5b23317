"""The comparison of all methods on the pocket world (`python -m studies.reproduce`).

For each seed: a world with open sentences and its seed model (base), then every method from the same seed model,
evaluated on the test problems over eight rounds of feedback. The last step makes tables and plots (`--table`). Two
views are equally fair, and both are made:

- equal examples: each method is trained on as many responses as the others, or a few more: an online trajectory of
  three responses is three examples;
- equal time: each method is trained until it has taken as much time as FT-Cobalt, with the collection of its
  trajectories (`studies.equal_time`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cobalt.hacking.events import read_events, tempted_turns
from cobalt.pocket.open_sentences import OPEN_SHARE
from cobalt.report.curves import METRICS, read_metrics
from cobalt.report.plots import plot_turns
from cobalt.report.runs import EVALUATION
from cobalt.report.tables import Table
from cobalt.rollout.evaluate import TurnMetrics
from cobalt.stage.cli import run_script
from cobalt.stage.errors import system_errors
from studies import methods, seed_tables
from studies.costs import Cost, cost, cost_table
from studies.flags import SeedsFlags
from studies.lines import EVENTS, POCKET, Lines, length, problems
from studies.methods import METHODS, SECOND_ROUND, STEPS, TIMED, Method, SeedFolders
from studies.plan import Step, Study
from studies.seeds import SeedRuns, pooled, read_runs

MODULE = "studies.reproduce"

_SETTINGS = (
    "actor_rollout_ref.actor.optim.lr=4e-4 actor_rollout_ref.actor.use_kl_loss=true"
    " actor_rollout_ref.actor.kl_loss_coef=0.1"
)
"""Of every training run, chosen on the development problems of seed 100, which is not reported (docs/RESULTS.md)."""

_COLLECTIONS = {"base": "cobalt", "FT": "ft_cobalt", "FT-Cobalt after the first of 2 rounds": SECOND_ROUND}


class _SeedPlan(Lines):
    """The steps of one seed, in order."""

    def __init__(self, at: SeedFolders) -> None:
        super().__init__(at.seed, prefix=at.step(""))
        self._at, self._base, self._ft = at, at.model(methods.BASE), at.model(methods.FT)
        self._dev, self._validation = at.home / "dev_problems.jsonl", at.home / "validation_prompts.jsonl"
        self._collected, self._train_problems = at.home / "collected_problems.jsonl", problems(at.world, "train")

    def build(self) -> list[Step]:
        """The whole plan. Steps that need the same model stand together, and share one start of the services."""
        base, ft = self._base, self._ft
        longer = STEPS // 4  # than rows of equal examples take, in case that the time of FT-Cobalt allows for more
        self._problems()
        self._row(methods.BASE)
        self._collect("cobalt", base)
        self._problem_rows("ft", "--prompts pocket")
        self._train("ft", "grpo_single_turn", base, 4 * STEPS)
        self._row(methods.FT)
        self._collect("ft_cobalt", ft)
        self._cut("ft_cobalt", ft)
        self._train("ft_cobalt", "grpo_multi_turn", ft, STEPS)
        self._row(methods.FT_COBALT)
        self._row(methods.FT_MORE)
        for method in (methods.GRPO_MT, methods.VERPO_MT):
            self._problem_rows(method.slug, f"--episodes {POCKET.partition(' --max_tokens')[0]}")
            self._train(method.slug, method.slug, base, STEPS + longer, save_every=1)
            self._row(method)
        self._cut("cobalt", base)
        self._train("cobalt", "grpo_multi_turn", base, 2 * STEPS + longer, save_every=1)
        self._row(methods.COBALT_OWN)
        ptb, collection = methods.FT_COBALT_PTB.slug, self._at.home / "ft_cobalt_collection"
        self.perturbed(ptb, collection, self._at.home / f"{ptb}_data", ft, self._validation)
        self._train(ptb, "grpo_multi_turn", ft, STEPS)
        self._row(methods.FT_COBALT_PTB)
        self._second_round()
        self._train("cobalt_ft", "grpo_multi_turn", base, 2 * STEPS, data="ft_cobalt")
        for method in (methods.COBALT_HALF, methods.COBALT, *methods.EQUAL_TIME):
            self._row(method)
        return self.steps

    def _problems(self) -> None:
        self.world(self._at.world, f"--demonstrations 8000 --open_share {OPEN_SHARE:g} --test_problems 120")
        # Training runs of veRL want development problems, though these do not validate.
        self.head("dev_problems", 32, problems(self._at.world, "dev"), self._dev)
        self.head("collected_problems", 300, self._train_problems, self._collected)
        run = self._at.home / "validation_collection"
        self.write("validation_collection", self._dev, run, self._base, "--turns 2 -n 1")
        self.prompts("validation_prompts", run, self._validation, self._base, "--prompts pocket --is_test")

    def _train(
        self, slug: str, method: str, policy: Path, steps: int, save_every: int = 4, data: str | None = None
    ) -> None:
        rows, settings = self._at.home / f"{data or slug}_data", f"{length(steps, save_every=save_every)} {_SETTINGS}"
        self.train(f"{slug}_training", method, rows, policy, self._at.home / f"{slug}_training", settings)

    def _row(self, method: Method) -> None:
        """The policy of a row, exported from its last training run, and its evaluations."""
        at, model, test = self._at, self._at.model(method), problems(self._at.world, "test")
        for slug, share in method.trained[-1:]:
            if share is not None:
                self.export(f"{method.slug}_model", at.home / f"{slug}_training", int(share * STEPS), model)
                continue
            line = ("python -m studies.equal_time --study", at.folder, "--output_dir", model)
            flags = f"--seed {at.seed} --row {method.slug}"
            purpose = "Export the last checkpoint that fits into the time of FT-Cobalt."
            needs = tuple(at.home / f"{name}_training" / METRICS for name in dict.fromkeys(("ft", "ft_cobalt", slug)))
            self.add(f"{method.slug}_model", purpose, *line, flags, makes=[model], needs=needs)
        self.write(f"{method.slug}_test", test, at.evaluation(method), model, "-n 1")
        if method.perturbed:
            self.write(f"{method.slug}_perturbed", test, at.perturbed(method), model, "-n 1 --perturbed")

    def _problem_rows(self, slug: str, flags: str) -> None:
        files = (self._train_problems, self._dev, self._at.home / f"{slug}_data")
        self.rows(f"{slug}_rows", "single", *files, self._base, flags)

    def _collect(self, slug: str, model: Path) -> None:
        self.write(f"{slug}_collection", self._collected, self._at.home / f"{slug}_collection", model, "--turns 2 -n 4")

    def _cut(self, slug: str, policy: Path) -> None:
        data = self._at.home / f"{slug}_data"
        prompts = data / "prompts.jsonl"
        self.prompts(f"{slug}_prompts", self._at.home / f"{slug}_collection", prompts, policy, "--prompts pocket")
        self.rows(f"{slug}_rows", "multi", prompts, self._validation, data, policy)

    def _second_round(self) -> None:
        """FT-Cobalt in two rounds: the first half of its run, and one on trajectories of the policy reached by then."""
        half, reached = STEPS // 2, self._at.home / "models" / "ft_cobalt_2_rounds_1"
        self.export(reached.name + "_model", self._at.home / "ft_cobalt_training", half, reached)
        self._collect(SECOND_ROUND, reached)
        self._cut(SECOND_ROUND, reached)
        self._train(SECOND_ROUND, "grpo_multi_turn", reached, half)
        self._row(methods.TWO_ROUNDS)


def tables_of(seeds: Sequence[SeedFolders]) -> tuple[list[tuple[str, Table]], dict[str, seed_tables.Draw]]:
    """Every table, under its heading, and plots of Pass@1 by turn, by the table that they follow.

    Raises UserError if a run is missing or cannot be read, or the runs are not on the same problems.
    """
    named, timed = (
        read_runs({method.name: {at.seed: at.evaluation(method) for at in seeds} for method in rows})
        for rows in (METHODS, TIMED)
    )
    hacked = [method for method in METHODS if method.perturbed]
    perturbed = read_runs({method.name: {at.seed: at.perturbed(method) for at in seeds} for method in hacked})
    costs = {method.name: {at.seed: cost(at, method) for at in seeds} for method in METHODS[1:]}
    counts = {"": ["responses"], methods.BASE.name: ["0"]}
    counts |= {name: [f"{sum(one.examples for one in c.values()) // len(c):,}"] for name, c in costs.items()}
    spent = {"": ["steps", "seconds"], methods.BASE.name: ["0", "0"]}
    for method in TIMED[1:]:
        spent[method.name] = _spent(method, {at: cost(at, method) for at in seeds})
    events = {method.name: _events(seeds, method) for method in hacked}
    files = {name: [run.evaluation for run in runs.values()] for name, runs in named.items()}
    folders = {name: [at.home / f"{slug}_collection" for at in seeds] for name, slug in _COLLECTIONS.items()}
    collections = {name: [run / EVALUATION for run in runs] for name, runs in folders.items()}
    caption = "Equal training examples, except for base, FT and Cobalt, half."
    timed_caption = (
        "Equal time: the last checkpoint that fits into FT-Cobalt's time, its collection included; steps of each"
        " seed, with (end) where the training run has no later checkpoint."
    )
    with system_errors("a world's ceilings cannot be read: run this from the checkout, where the study was run"):
        ceilings = [json.loads((at.world / "data" / "ceilings.json").read_bytes())["test"] for at in seeds]
    tables = [
        ("Ceilings", seed_tables.ceiling_table(ceilings)),
        ("Equal training examples", seed_tables.pass_table("equal_examples", caption, named, counts)),
        ("FT-Cobalt against the others", seed_tables.gain_table("gain", named, methods.FT_COBALT.name)),
        ("Cobalt against the others", seed_tables.gain_table("gain_cobalt", named, methods.COBALT.name)),
        ("Equal time", seed_tables.pass_table("equal_time", timed_caption, timed, spent)),
        ("Repairs", seed_tables.moves_table(files)),
        ("Costs", cost_table("costs", costs)),
        ("Impossible feedback", seed_tables.impossible_table(perturbed, events)),
        ("One-step recoverability", seed_tables.recoverability_table(collections)),
    ]
    shown = {method.name: named[method.name] for method in METHODS if method not in methods.VARIANTS}
    drawn: dict[str, seed_tables.Draw] = {
        table: partial(plot_turns, {name: _curve(runs) for name, runs in rows.items()}, styles=list(named))
        for table, rows in (("equal_examples", shown), ("equal_time", timed))
    }
    return tables, drawn


def _spent(method: Method, costs: dict[SeedFolders, Cost]) -> list[str]:
    """Steps and seconds of a row of equal time; a mark where its training run ends there, and might have had more."""
    steps = []
    for at, one in costs.items():
        runs = [at.home / f"{slug}_training" for slug, share in method.trained if share is None]
        ended = any(one.steps == max(number for number, _ in read_metrics(run)) for run in runs)
        steps.append(f"{one.steps}{' (end)' * ended}")
    return [" / ".join(steps), f"{sum(one.seconds for one in costs.values()) / len(costs):,.0f}"]


def _events(seeds: Sequence[SeedFolders], method: Method) -> tuple[int, int | None]:
    """Hacking events of all seeds, and the turns after an impossible test; None where a run has no count."""
    files = [at.perturbed(method) / EVENTS for at in seeds]
    turns = [count for count in map(tempted_turns, files) if count is not None]
    return sum(len(read_events(file)) for file in files), sum(turns) if len(turns) == len(files) else None


def _curve(runs: SeedRuns) -> list[TurnMetrics]:
    """Pass@1 by turn, of all seeds; a plot shows nothing else."""
    estimates = [pooled(runs, turn) for turn in range(len(next(iter(runs.values())).metrics))]
    return [TurnMetrics(turn, one.mean, (one.lower, one.upper), 0.0, None) for turn, one in enumerate(estimates)]


@dataclass(frozen=True)
class Arguments(SeedsFlags):
    """Compare base, FT, Cobalt, GRPO-MT, VeRPO-MT and their variants on the pocket world, several seeds, two cores.

    Takes more than an hour for each seed. Stop it whenever you like: the same command goes on where it stopped.
    """


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for; seeds can be added to the same folder later."""
    folder = arguments.output_dir or Path("runs/reproduce")
    steps = [step for seed in arguments.seeds for step in _SeedPlan(SeedFolders(folder, seed)).build()]
    last = Lines(0, inputs=[file for step in steps for file in step.files])
    page = arguments.add_tables(last, MODULE, folder)
    return Study("reproduce", folder, {}, (*steps, *last.steps), f"done: {page}")


def main(arguments: Arguments) -> int:
    """List the study, run it, or write its tables; returns the exit code."""
    planned = study(arguments)
    seeds = [SeedFolders(planned.folder, seed) for seed in sorted(arguments.seeds)]
    return arguments.finish(planned, lambda page: seed_tables.write_page(page, MODULE, *tables_of(seeds)))


if __name__ == "__main__":
    run_script(Arguments, main)
