"""Offline training compared with Cobalt on the pocket world (`python -m studies.offline`; arXiv 2605.28409).

It goes on from the comparison of `studies.reproduce`: the same seed models, evaluation and seeds (docs/RESULTS.md has
the protocol). Judged programs of three policies of different skill stand in for submissions. Two rows train on the
trajectories that Cobalt is trained on, without a new sample and with the rewards that were recorded. All rows are
validated on the same programs, which are the seed model's, so that their KL divergences compare. The tables (`--table`)
may stand in the same page as those of `studies.reproduce`, between marks of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from json import loads
from pathlib import Path
from statistics import mean

from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.episode.record import read_trajectories
from cobalt.report.curves import METRICS, read_metrics
from cobalt.report.runs import EVALUATION
from cobalt.report.tables import Table
from cobalt.rollout.evaluate import count_distinct
from cobalt.stage.cli import run_script
from cobalt.stage.errors import system_errors
from cobalt.training.configuration import path_overrides
from studies.costs import Cost, batch_of, collected, command_seconds, cost, cost_table, training_seconds
from studies.flags import SeedsFlags
from studies.lines import Lines, Word, problems
from studies.methods import BASE, COBALT, FT, FT_COBALT, GRPO_MT, Method, SeedFolders
from studies.plan import Step, Study
from studies.seed_tables import gain_table, pass_table, samples_table, write_page
from studies.seeds import read_runs

MODULE = "studies.offline"

WRITERS = (BASE, FT, GRPO_MT)
"""Policies whose programs are the submissions."""

SUBMISSIONS, SAMPLES = 8, 10
"""Programs of each writer for each training problem, and first programs of a row for each test problem, for pass@k."""

STEPS, RESPONSES = 64, 64
"""Steps of a training run that has no number of epochs, and responses of a step, before supervised training leaves out
those that are not accepted; as many in all as Cobalt's 32 steps of 128."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A way to make groups: its folder's name, the responses of a group, and flags of preproc/preproc_judged.py.

    They are made of submissions of `writers`, or without these of Cobalt's trajectories; then no problems are left out
    for validation.
    """

    slug: str
    size: int = 4
    flags: str = ""
    writers: tuple[Method, ...] = WRITERS


IMITATION_RATE, AGAINST_RATE = "4e-4", "3e-5"
"""Learning rates of rows that only imitate, and of those that also train against responses, whose loss nothing bounds
from below. Both were chosen on the development problems of seed 100 (docs/RESULTS.md)."""


@dataclass(frozen=True, slots=True)
class OfflineMethod:
    """A row.

    Attributes:
        name: In tables.
        slug: In the names of steps and folders.
        groups: Groups that it is trained on.
        estimator: Of `cobalt.reward.offline`.
        learning_rate: Of its training.
        epochs: Passes over its data; None: as many as `STEPS` take.
    """

    name: str
    slug: str
    groups: Groups
    estimator: str
    learning_rate: str = AGAINST_RATE
    epochs: int | None = None


FOURS, EIGHTS = Groups("groups_of_4"), Groups("groups_of_8", 8)
ANY = Groups("groups_not_balanced", 4, "--contrast any")
OF_BASE = Groups("groups_of_base", writers=(BASE,))
# Four trajectories of a problem seldom have four different programs, and few problems have both kinds of first ones.
# These rows have little data, and so see it a few times only.
FIRST = Groups("groups_of_first_turns", 2, "--rewards_from recorded", ())
TURNS = Groups("groups_of_turns", 2, "--responses turns --rewards_from recorded", ())

VALIDATION = Groups("groups_of_validation", 4, "--contrast any", (BASE,))
"""Its file of validation is that of every row: programs of the seed model for problems that FOURS leaves out, too."""

# Of two responses the group-normalised advantage forgets how far apart their rewards are, so pairs have that of RLOO.
SFT = OfflineMethod("SFT", "sft", FOURS, "sft", IMITATION_RATE)
OFFLINE_METHODS = (
    SFT,
    OfflineMethod("RLOO", "rloo", FOURS, "rloo"),
    OfflineMethod("RLOO, GRPO's advantage", "grpo", FOURS, "grpo"),
    OfflineMethod("RLOO, exponential advantage", "exponential", FOURS, "exponential", IMITATION_RATE),
    OfflineMethod("GRPO's advantage, groups of 8", "grpo_8", EIGHTS, "grpo"),
    OfflineMethod("GRPO's advantage, not balanced", "grpo_any", ANY, "grpo"),
    OfflineMethod("GRPO's advantage, base's programs alone", "grpo_base", OF_BASE, "grpo"),
    OfflineMethod("Cobalt's first turns, offline", "first_turns", FIRST, "rloo", epochs=6),
    OfflineMethod("Cobalt's partial trajectories, offline", "turns", TURNS, "rloo", epochs=6),
)

Row = Method | OfflineMethod

MOVED, COMPARED = (COBALT, FT_COBALT), (BASE, COBALT)
"""Rows of `studies.reproduce` whose KL divergence is estimated on the same programs, and that have pass@k, too."""
ROWS: tuple[Row, ...] = (*COMPARED, *OFFLINE_METHODS)
"""Rows that pass@k is estimated for."""
SHOWN: tuple[Row, ...] = (BASE, *OFFLINE_METHODS, *MOVED)
"""Rows that are compared over the turns."""


@dataclass(frozen=True, slots=True)
class OfflineFolders(SeedFolders):
    """Folders and files of one seed.

    Attributes:
        made_in: Folder of `studies.reproduce`, whose world, policies and trajectories this study starts from.
    """

    made_in: Path = Path("runs/reproduce")

    @property
    def reproduced(self) -> SeedFolders:
        """Folders and files of `studies.reproduce`."""
        return SeedFolders(self.made_in, self.seed)

    @property
    def trajectories(self) -> Path:
        """The trajectories that Cobalt is trained on."""
        return self.reproduced.home / "ft_cobalt_collection" / EVALUATION

    def submitted(self, writer: Method) -> Path:
        """A writer's judged programs."""
        return self.home / "submissions" / f"{writer.slug}.jsonl"

    def policy(self, row: Row) -> Path:
        """The policy of a row."""
        return self.reproduced.model(row) if isinstance(row, Method) else self.home / f"{row.slug}_training" / "model"

    def tested(self, row: Row) -> Path:
        """The trajectories of a row on the test problems."""
        return self.reproduced.evaluation(row) if isinstance(row, Method) else self.home / "test" / row.slug

    def divergence(self, row: Method) -> Path:
        """The KL divergence of a row of `MOVED`."""
        return self.home / "divergence" / f"{row.slug}.json"

    def samples(self, row: Row) -> Path:
        """Many first programs of a row for each test problem."""
        return self.home / "samples" / row.slug

    def inputs(self) -> Iterator[Path]:
        """Files that `studies.reproduce` has made: those the steps start from, and those the tables show besides."""
        at = self.reproduced
        yield from (problems(self.world, name) for name in ("train", "test"))
        yield from dict.fromkeys(at.model(row) for row in (*WRITERS, *COMPARED, *MOVED))
        yield self.trajectories
        yield from (at.evaluation(row) / EVALUATION for row in SHOWN if isinstance(row, Method))
        runs = [at.home / f"{slug}_training" for row in (*WRITERS, *MOVED) for slug, _ in row.trained]
        yield from dict.fromkeys(run / METRICS for run in runs)


def _steps(at: OfflineFolders) -> list[Step]:
    """The plan of one seed, in order."""
    lines = Lines(at.seed, inputs=at.inputs(), prefix=at.step(""))
    base, train = at.policy(BASE), problems(at.world, "train")
    validation = at.home / f"{VALIDATION.slug}_data" / "validation.jsonl"
    for writer in WRITERS:
        # Above 0.6 sampling is without a nucleus.
        flags = f"-n {SUBMISSIONS} --temperature 1 --top_p 1"
        lines.sample(f"{writer.slug}_submissions", train, at.submitted(writer), at.policy(writer), flags)
    for groups in dict.fromkeys((VALIDATION, *(method.groups for method in OFFLINE_METHODS))):
        _add_groups(lines, at, groups)
    for method in OFFLINE_METHODS:
        length = f"trainer.total_epochs={method.epochs or STEPS}"
        length += "" if method.epochs else f" trainer.total_training_steps={STEPS}"
        # It is validated before it, at every quarter of its steps, and at its end.
        settings = f"{length} trainer.save_freq=-1 trainer.test_freq={max(1, STEPS // 4)}"
        settings += f" optim.lr={method.learning_rate} data.train_batch_size={RESPONSES // method.groups.size}"
        run, data = at.home / f"{method.slug}_training", at.home / f"{method.groups.slug}_data"
        validated = tuple(path_overrides({"data.val_files": validation}))
        lines.train_offline(run.name, method.estimator, data, base, run, validated, settings)
    for moved in MOVED:
        line = ("python -m studies.divergence --start", base, "--model", at.policy(moved), "--groups", validation)
        file, purpose = at.divergence(moved), "Estimate how far it has moved from the seed model."
        lines.add(f"{moved.slug}_divergence", purpose, *line, "--output_file", file, makes=[file])
    for row in ROWS:
        _add_evaluations(lines, at, row)
    return lines.steps


def _add_groups(lines: Lines, at: OfflineFolders, groups: Groups) -> None:
    results = [at.submitted(writer) for writer in groups.writers] or [at.trajectories]
    folder = at.home / f"{groups.slug}_data"
    files = (folder / "train.jsonl", *((folder / "validation.jsonl",) if groups.writers else ()))
    line: tuple[Word, ...] = ("--input_files", *results, "--output_dir", folder, "--model_name", at.policy(BASE))
    # Programs of this world are a few lines long, so that those with different mistakes are near duplicates.
    flags = f"--prompts pocket --near_duplicates 1.1 --max_tokens 1024 --seed {at.seed} --group_size {groups.size}"
    flags += f" {groups.flags} {'' if groups.writers else '--validation_share 0'}"
    script, purpose = "python preproc/preproc_judged.py", "Make groups of judged programs."
    lines.add(groups.slug, purpose, script, *line, flags, makes=files)


def _add_evaluations(lines: Lines, at: OfflineFolders, row: Row) -> None:
    test, single = problems(at.world, "test"), at.samples(row) / "single_turn.jsonl"
    lines.sample(f"{row.slug}_samples", test, single, at.policy(row), f"-n {SAMPLES} --temperature 0.6")
    if row not in COMPARED:  # next to the other step that needs the same model, so that its engine is started once
        lines.write(f"{row.slug}_test", test, at.tested(row), at.policy(row), "-n 1")
    line = ("python eval_single_turn.py --input_file", single, "--output_file", at.samples(row) / EVALUATION)
    lines.add(f"{row.slug}_pass_at_k", "Estimate pass@k, and count different programs.", *line, makes=line[-1:])


def offline_run(at: OfflineFolders, method: OfflineMethod) -> tuple[Cost, list[float]]:
    """Cost and figures of a training run of a row.

    The cost is that of its training, the making of its groups, and the collection of Cobalt's trajectories where it is
    trained on them. The making of submissions does not count, because offline training takes those that are there.

    Returns:
        The cost; how many different responses it was trained on, how often it saw each of them, and the last
        KL(start || policy) that it was validated with, in nats a token.

    Raises UserError if a step of one of the studies has not run.
    """
    run, groups = at.home / f"{method.slug}_training", at.home / f"{method.groups.slug}_data" / "train.jsonl"
    trained = [metrics for number, metrics in read_metrics(run) if number > 0]
    *_, divergence = (metrics["validation/kl"] for metrics in trained if "validation/kl" in metrics)
    examples = round(sum(metrics["training/responses"] for metrics in trained))
    memory = max(metrics.get("perf/cpu_memory_used_gb", 0.0) for metrics in trained)
    preparing = command_seconds(at.folder, [at.step(method.groups.slug)])
    tokens, tests = 0, 0
    if not method.groups.writers:
        preparing += command_seconds(at.made_in, [at.step("ft_cobalt_collection")])
        tokens, tests = collected(at.trajectories)
    statuses = [response.status for group in read_groups(groups) for response in group.responses]
    distinct = statuses.count(Status.ACCEPTED) if method.estimator == "sft" else len(statuses)
    steps, seconds = len(trained), training_seconds(run, len(trained)) + preparing
    cost = Cost(steps, steps * batch_of(run)[0], examples, seconds, preparing, tokens, tests, memory)
    return cost, [distinct, examples / distinct, divergence]


def tables_of(seeds: Sequence[OfflineFolders]) -> list[tuple[str, Table]]:
    """Every table, under its heading.

    Raises UserError if a run is missing or cannot be read, or the runs are not on the same problems.
    """
    runs = read_runs({row.name: {at.seed: at.tested(row) for at in seeds} for row in SHOWN})
    scores = {
        row.name: [count_distinct(group) for at in seeds for group in read_trajectories(at.samples(row) / EVALUATION)]
        for row in ROWS
    }
    costs: dict[str, dict[int, Cost]] = {}
    extra = {"": ["examples", "distinct", "epochs", "KL"], BASE.name: ["0", "0", "0", "0.000"]}
    for row in SHOWN[1:]:
        if isinstance(row, OfflineMethod):
            trained = {at.seed: offline_run(at, row) for at in seeds}
            costs[row.name] = {seed: cost for seed, (cost, _) in trained.items()}
            distinct, epochs, kl = map(mean, zip(*(figures for _, figures in trained.values()), strict=True))
            data = [f"{distinct:,.0f}", f"{epochs:.1f}"]
        else:
            costs[row.name] = {at.seed: cost(at.reproduced, row) for at in seeds}
            with system_errors(f"the divergence of {row.name} cannot be read: run studies.offline to its end"):
                data, kl = ["", ""], mean(loads(at.divergence(row).read_bytes())["kl"] for at in seeds)
        examples = mean(one.examples for one in costs[row.name].values())
        extra[row.name] = [f"{examples:,.0f}", *data, f"{kl:.3f}"]
    reached = pass_table("offline", _caption(seeds), runs, extra)
    data_rows = [(*values, extra[str(values[0])][-1]) for values in reached.data_rows]
    return [
        ("Offline RL", replace(reached, data_header=(*reached.data_header, "kl"), data_rows=data_rows)),
        *(
            (f"Offline RL: {row.name} against the others", gain_table(f"offline_gain_{row.slug}", runs, row.name))
            for row in (BASE, SFT, COBALT)
        ),
        ("Offline RL: pass@k by difficulty", samples_table(scores)),
        ("Offline RL: costs", cost_table("offline_costs", costs)),
    ]


def _caption(seeds: Sequence[OfflineFolders]) -> str:
    submitted = command_seconds(
        seeds[0].folder, [at.step(f"{row.slug}_submissions") for at in seeds for row in WRITERS]
    )
    trained = [cost(at.reproduced, writer).seconds for at in seeds for writer in WRITERS if writer is not BASE]
    return (
        "Offline training beside Cobalt and FT-Cobalt, which generate in training. Submissions were written by"
        f" {', '.join(writer.name for writer in WRITERS)}: to sample and judge them took"
        f" {submitted / len(seeds):,.0f} s a seed, and to train these writers"
        f" {sum(trained) / len(seeds):,.0f} s; neither is in the costs of the rows. Examples are responses trained on,"
        " distinct ones are counted once. KL is KL(seed model || policy) in nats a token, estimated"
        " on the seed model's own programs for problems that rows on submissions leave out, each different one once."
    )


@dataclass(frozen=True)
class Arguments(SeedsFlags):
    """Compare offline training with Cobalt on the pocket world, from the models of a finished studies.reproduce.

    Takes about 38 minutes for each seed. Stop it whenever you like: the same command goes on where it stopped.
    """

    reproduced: Path = Path("runs/reproduce")
    """Folder of studies.reproduce, with the same seeds."""


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder, reproduced = arguments.output_dir or Path("runs/offline"), arguments.reproduced
    seeds = [OfflineFolders(folder, seed, reproduced) for seed in arguments.seeds]
    inputs = tuple(path for at in seeds for path in at.inputs())
    steps = [step for at in seeds for step in _steps(at)]
    last = Lines(0, inputs=[*inputs, *(file for step in steps for file in step.files)])
    page = arguments.add_tables(last, MODULE, folder, "--reproduced", reproduced)
    made_from = {"reproduced": str(reproduced)}
    return Study("offline", folder, made_from, (*steps, *last.steps), f"done: {page}", inputs=inputs)


def main(arguments: Arguments) -> int:
    """List the study, run it, or write its tables; returns the exit code."""
    planned = study(arguments)
    seeds = [OfflineFolders(planned.folder, seed, arguments.reproduced) for seed in sorted(arguments.seeds)]
    return arguments.finish(planned, lambda page: write_page(page, MODULE, tables_of(seeds)))


if __name__ == "__main__":
    run_script(Arguments, main)
