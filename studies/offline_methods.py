"""The rows of offline training in the comparison on the pocket world (arXiv 2605.28409), and where everything lies.

Judged programs of three policies of different skill stand in for submissions: of the seed model, FT and GRPO-MT, on
the training problems. Two more rows train on the trajectories that Cobalt is trained on, without a new sample and with
the rewards that were recorded: on their first turns, and on all of their turns. All rows are validated on the same
programs, which are the seed model's, so that their KL divergences compare. `studies.offline` plans the steps,
and `studies.offline_results` makes the tables.
"""

from dataclasses import dataclass
from pathlib import Path

from studies.methods import BASE, COBALT, FT, FT_COBALT, GRPO_MT, Method, SeedFolders

WRITERS = (BASE, FT, GRPO_MT)
"""Whose programs are the submissions."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the comparison is; what `studies.methods.Scale` has is the same.

    Attributes:
        submissions: Programs of each writer for each training problem.
        steps: Of each training run that has no number of epochs.
        responses: Of a training step, before supervised training leaves out those that are not accepted. 64 steps of 64
            have as many as Cobalt's 32 steps of 128.
    """

    submissions: int
    steps: int
    responses: int


FULL = Scale(submissions=8, steps=64, responses=64)
FAST = Scale(submissions=4, steps=8, responses=8)

SAMPLES = 10
"""First programs of a row for each test problem, for pass@k."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A way to make groups: its folder's name, the responses of a group, and flags of preproc/preproc_judged.py.

    They are made of submissions of `writers`, or without these of Cobalt's trajectories. `validation`: problems are
    left out for it.
    """

    slug: str
    size: int = 4
    flags: str = ""
    writers: tuple[Method, ...] = WRITERS
    validation: bool = True


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
        epochs: Passes over its data; None: as many as `Scale.steps` take.
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
FIRST = Groups("groups_of_first_turns", 2, "--rewards_from recorded", (), validation=False)
TURNS = Groups("groups_of_turns", 2, "--responses turns --rewards_from recorded", (), validation=False)

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
class OfflineFolders:
    """Where everything of one seed lies.

    Attributes:
        own: Of this study.
        reproduced: Of `studies.reproduce`, whose world, policies and trajectories this study starts from.
    """

    own: SeedFolders
    reproduced: SeedFolders

    @property
    def scale(self) -> Scale:
        """How large the comparison is."""
        return FAST if self.own.fast else FULL

    @property
    def trajectories(self) -> Path:
        """The trajectories that Cobalt is trained on."""
        return self.reproduced.collected("ft_cobalt")

    def submissions(self, writer: Method) -> Path:
        """A writer's judged programs."""
        return self.own.home / "submissions" / f"{writer.slug}.jsonl"

    def training(self, method: OfflineMethod) -> Path:
        """The training run of a row."""
        return self.own.training(method.slug)

    def model(self, row: Row) -> Path:
        """The policy of a row."""
        return self.reproduced.model(row) if isinstance(row, Method) else self.training(row) / "model"

    def evaluation(self, row: Row) -> Path:
        """The trajectories of a row on the test problems."""
        return self.reproduced.evaluation(row) if isinstance(row, Method) else self.own.home / "test" / row.slug

    def divergence(self, row: Method) -> Path:
        """The KL divergence of a row of `MOVED`."""
        return self.own.home / "divergence" / f"{row.slug}.json"

    @property
    def validation(self) -> Path:
        """The programs that every row's KL divergence is estimated on."""
        return self.own.data(VALIDATION.slug) / "validation.jsonl"

    def samples(self, row: Row) -> Path:
        """Many first programs of a row for each test problem."""
        return self.own.home / "samples" / row.slug


def folders_of(folder: Path, reproduced: Path, seed: int, *, fast: bool) -> OfflineFolders:
    """The folders of a seed in this study and in `studies.reproduce`; `fast`: both are those of `--fast`."""
    return OfflineFolders(SeedFolders(folder, seed, fast), SeedFolders(reproduced, seed, fast))
