"""Offline training compared with Cobalt on the pocket world (`python -m studies.offline`; arXiv 2605.28409).

It goes on from the comparison of `studies.reproduce`: the same seed models, evaluation and seeds. Judged programs of
three policies of different skill stand in for submissions: of the seed model, FT and GRPO-MT, on the training problems.
They are put into groups, each row of `OFFLINE_METHODS` is trained on groups, and all rows write many first programs for
pass@k and are evaluated over eight rounds of feedback. Two more rows train on the trajectories that Cobalt is trained
on, without a new sample and with the rewards that were recorded: on their first turns, and on all of their turns. All
rows are validated on the same programs, which are the seed model's, so that their KL divergences compare.
`studies.offline_results` makes the tables.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cobalt.report.curves import METRICS
from cobalt.report.runs import EVALUATION
from cobalt.stage.cli import run_script
from cobalt.training.configuration import path_overrides
from studies.flags import SeedsFlags
from studies.lines import Lines, Word, problems
from studies.methods import BASE, COBALT, FT, FT_COBALT, GRPO_MT, Method, SeedFolders
from studies.plan import Step, Study

WRITERS = (BASE, FT, GRPO_MT)
"""Whose programs are the submissions."""

SUBMISSIONS = 8
"""Programs of each writer for each training problem."""

STEPS, RESPONSES = 64, 64
"""Steps of a training run that has no number of epochs, and responses of a step, before supervised training leaves out
those that are not accepted; as many in all as Cobalt's 32 steps of 128."""

SAMPLES = 10
"""First programs of a row for each test problem, for pass@k."""


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
        groups: What it is trained on.
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

MOVED = (COBALT, FT_COBALT)
"""Rows of `studies.reproduce` whose KL divergence is estimated on the same programs, too."""

COMPARED = (BASE, COBALT)
"""Rows of `studies.reproduce` that pass@k is estimated for, too."""

ROWS: tuple[Row, ...] = (*COMPARED, *OFFLINE_METHODS)
"""Rows that pass@k is estimated for."""

SHOWN: tuple[Row, ...] = (BASE, *OFFLINE_METHODS, COBALT, FT_COBALT)
"""Rows that are compared over the turns."""


@dataclass(frozen=True, slots=True)
class OfflineFolders(SeedFolders):
    """Where everything of one seed lies.

    Attributes:
        made_in: Folder of `studies.reproduce`, whose world, policies and trajectories this study starts from.
    """

    made_in: Path = Path("runs/reproduce")

    @property
    def reproduced(self) -> SeedFolders:
        """Where everything of `studies.reproduce` lies."""
        return SeedFolders(self.made_in, self.seed)

    @property
    def trajectories(self) -> Path:
        """The trajectories that Cobalt is trained on."""
        return self.reproduced.collection("ft_cobalt") / EVALUATION

    def submitted(self, writer: Method) -> Path:
        """A writer's judged programs."""
        return self.home / "submissions" / f"{writer.slug}.jsonl"

    def policy(self, row: Row) -> Path:
        """The policy of a row."""
        return self.reproduced.model(row) if isinstance(row, Method) else self.training(row.slug) / "model"

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
        """What `studies.reproduce` has made: what the steps start from, and what the tables show besides."""
        yield from (problems(self.world, name) for name in ("train", "test"))
        yield from dict.fromkeys(self.policy(row) for row in (*WRITERS, *COMPARED, *MOVED))
        yield self.trajectories
        online = [row for row in (*WRITERS, *SHOWN) if isinstance(row, Method)]
        yield from dict.fromkeys(self.tested(row) / EVALUATION for row in SHOWN if row in online)
        yield from dict.fromkeys(self.reproduced.training(slug) / METRICS for row in online for slug, _ in row.trained)


def _steps(at: OfflineFolders) -> list[Step]:
    """The plan of one seed, in order."""
    lines = Lines(at.seed, inputs=at.inputs(), prefix=at.step(""))
    base, train = at.policy(BASE), problems(at.world, "train")
    validation = at.data(VALIDATION.slug) / "validation.jsonl"
    for writer in WRITERS:
        purpose = f"Collect judged programs of {writer.name}, which stand in for submissions."
        # Above 0.6 sampling is without a nucleus.
        flags = f"-n {SUBMISSIONS} --temperature 1 --top_p 1"
        lines.sample(f"{writer.slug}_submissions", purpose, train, at.submitted(writer), at.policy(writer), flags)
    for groups in dict.fromkeys((VALIDATION, *(method.groups for method in OFFLINE_METHODS))):
        _add_groups(lines, at, groups)
    for method in OFFLINE_METHODS:
        length = f"trainer.total_epochs={method.epochs or STEPS}"
        length += "" if method.epochs else f" trainer.total_training_steps={STEPS}"
        # It is validated before it, at every quarter of its steps, and at its end.
        settings = f"{length} trainer.save_freq=-1 trainer.test_freq={max(1, STEPS // 4)}"
        settings += f" optim.lr={method.learning_rate} data.train_batch_size={RESPONSES // method.groups.size}"
        name, data, run = f"{method.slug}_training", at.data(method.groups.slug), at.training(method.slug)
        validated = tuple(path_overrides({"data.val_files": validation}))
        lines.train_offline(name, method.estimator, data, base, run, validated, settings)
    for moved in MOVED:
        purpose = f"Estimate how far {moved.name} has moved from the seed model."
        line = ("python -m studies.divergence --start", base, "--model", at.policy(moved), "--groups", validation)
        file = at.divergence(moved)
        lines.add(f"{moved.slug}_divergence", purpose, *line, "--output_file", file, makes=[file])
    for row in ROWS:
        _add_evaluations(lines, at, row)
    return lines.steps


def _add_groups(lines: Lines, at: OfflineFolders, groups: Groups) -> None:
    results = [at.submitted(writer) for writer in groups.writers] or [at.trajectories]
    folder = at.data(groups.slug)
    files = (folder / "train.jsonl", *((folder / "validation.jsonl",) if groups.writers else ()))
    line: tuple[Word, ...] = ("--input_files", *results, "--output_dir", folder, "--model_name", at.policy(BASE))
    # Programs of this world are a few lines long, so that those with different mistakes are near duplicates.
    flags = f"--prompts pocket --near_duplicates 1.1 --max_tokens 1024 --seed {at.seed} --group_size {groups.size}"
    flags += f" {groups.flags} {'' if groups.writers else '--validation_share 0'}"
    purpose = "Put judged programs into groups for offline training."
    lines.add(groups.slug, purpose, "python preproc/preproc_judged.py", *line, flags, makes=files)


def _add_evaluations(lines: Lines, at: OfflineFolders, row: Row) -> None:
    test, single = problems(at.world, "test"), at.samples(row) / "single_turn.jsonl"
    purpose = f"Sample {SAMPLES} first programs of {row.name} for each test problem."
    lines.sample(f"{row.slug}_samples", purpose, test, single, at.policy(row), f"-n {SAMPLES} --temperature 0.6")
    if row not in COMPARED:  # next to the other step that needs the same model, so that its engine is started once
        purpose = f"Evaluate {row.name} on the test problems."
        lines.write(f"{row.slug}_test", purpose, test, at.tested(row), at.policy(row), "-n 1")
    line = ("python eval_single_turn.py --input_file", single, "--output_file", at.samples(row) / EVALUATION)
    purpose = "Estimate pass@k, and count different programs."
    lines.add(f"{row.slug}_pass_at_k", purpose, *line, makes=line[-1:])


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
    last.tables("studies.offline_results", folder, "--reproduced", reproduced, arguments.shared)
    return Study(
        "offline",
        folder,
        {"reproduced": str(reproduced)},
        (*steps, *last.steps),
        f"done: {folder / 'RESULTS.md'}",
        inputs=inputs,
        made_by=" ".join(["python -m studies.reproduce", str(reproduced), *arguments.shared]),
    )


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
