"""The methods of the comparison on the pocket world: their rows, how large they are, and where everything lies.

`studies.reproduce` plans the steps that make them, and `studies.results` the tables. Offline training has
rows of its own (`studies.offline_methods`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cobalt.stage.errors import UserError
from studies import pocket


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the comparison is.

    Attributes:
        demonstrations: Conversations that the seed model learns from.
        test_problems: Problems that the models are compared on, one trajectory each.
        collection_problems: Problems that trajectories are collected for, four each.
        steps: Steps of FT, and of Cobalt after FT. Other methods that start from the seed model take twice as many, or
            three quarters where a sample is a trajectory of about three responses.
        save_every: Steps between the checkpoints that the view of equal time can choose from.
    """

    demonstrations: int
    test_problems: int
    collection_problems: int
    steps: int
    save_every: int


FULL = Scale(demonstrations=8000, test_problems=120, collection_problems=300, steps=16, save_every=4)
FAST = Scale(demonstrations=2000, test_problems=20, collection_problems=50, steps=2, save_every=1)


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the comparison.

    Attributes:
        name: In tables.
        slug: In the names of steps and folders.
        view: "examples", "time", or "both" for a row that is in both views.
        trained: The training runs that made it, each with its length in multiples of `Scale.steps`, rounded down
            to whole steps; None: as many steps as fit into the time of FT-Cobalt.
        prepared: The steps that made the data of its training, collection included.
        perturbed: Whether it is evaluated under impossible feedback, too.
    """

    name: str
    slug: str
    view: str
    trained: tuple[tuple[str, float | None], ...] = ()
    prepared: tuple[str, ...] = ()
    perturbed: bool = False


_FT_DATA = ("ft_rows",)
_COLLECTED = ("collection", "prompts", "rows")
_OWN_DATA = tuple(f"cobalt_{part}" for part in _COLLECTED)
_COBALT_DATA = tuple(f"ft_cobalt_{part}" for part in _COLLECTED)
_PERTURBED_DATA = tuple(f"ft_cobalt_ptb_{part}" for part in ("problems", "prompts", "rows"))

BASE = Method("base", "base", "both")
FT = Method("FT", "ft", "both", (("ft", 1),), _FT_DATA, perturbed=True)
FT_MORE = Method("FT-more", "ft_more", "examples", (("ft", 2),), _FT_DATA)
COBALT = Method("Cobalt", "cobalt_ft", "examples", (("cobalt_ft", 2),), _COBALT_DATA)
COBALT_HALF = Method("Cobalt, half", "cobalt_ft_half", "examples", (("cobalt_ft", 1),), _COBALT_DATA)
COBALT_OWN = Method("Cobalt, own trajectories", "cobalt", "examples", (("cobalt", 2),), _OWN_DATA)
FT_COBALT = Method(
    "FT-Cobalt", "ft_cobalt", "both", (("ft", 1), ("ft_cobalt", 1)), (*_FT_DATA, *_COBALT_DATA), perturbed=True
)
FT_COBALT_PTB = Method(
    "FT-Cobalt-PTB",
    "ft_cobalt_ptb",
    "examples",
    (("ft", 1), ("ft_cobalt_ptb", 1)),
    (*_FT_DATA, "ft_cobalt_collection", *_PERTURBED_DATA),
    perturbed=True,
)
GRPO_MT = Method("GRPO-MT", "grpo_mt", "examples", (("grpo_mt", 0.75),), ("grpo_mt_rows",), perturbed=True)
VERPO_MT = Method("VeRPO-MT", "verpo_mt", "examples", (("verpo_mt", 0.75),), ("verpo_mt_rows",), perturbed=True)
FT_TIME = Method("FT-more", "ft_more_time", "time", (("ft", None),), _FT_DATA)
COBALT_OWN_TIME = Method("Cobalt, own trajectories", "cobalt_time", "time", (("cobalt", None),), _OWN_DATA)
GRPO_MT_TIME = Method("GRPO-MT", "grpo_mt_time", "time", (("grpo_mt", None),), ("grpo_mt_rows",))
VERPO_MT_TIME = Method("VeRPO-MT", "verpo_mt_time", "time", (("verpo_mt", None),), ("verpo_mt_rows",))

ROUNDS = (2,)
"""Rounds of collection of the rows that have more than one; the paper's Cobalt has one."""


def rounds_method(rounds: int) -> Method:
    """FT-Cobalt in equal rounds: each collects with the policy reached by then (the first with FT), then trains."""
    slug = f"ft_cobalt_{rounds}_rounds"
    later = tuple(round_slug(rounds, number) for number in range(2, rounds + 1))
    return Method(
        f"FT-Cobalt, {rounds} rounds",
        slug,
        "examples",
        (("ft", 1), *((run, 1 / rounds) for run in ("ft_cobalt", *later))),
        (*_FT_DATA, *_COBALT_DATA, *(f"{run}_{part}" for run in later for part in _COLLECTED)),
    )


def round_slug(rounds: int, number: int) -> str:
    """The name of the collection, the rows and the training run of round `number`, from 2 on, of `rounds`."""
    return f"ft_cobalt_{rounds}_rounds_{number}"


def methods(rounds: Sequence[int] = ROUNDS) -> tuple[Method, ...]:
    """Rows, in the order of tables; a row of FT-Cobalt for each number of `rounds`.

    Cobalt trains the seed model on FT's trajectories, as in the paper. Beside it stand the same policy after as many
    steps of Cobalt as FT-Cobalt has, and a Cobalt on the seed model's own trajectories.
    """
    return (
        *(BASE, FT, FT_MORE, COBALT, COBALT_HALF, COBALT_OWN),
        *(FT_COBALT, *map(rounds_method, rounds), FT_COBALT_PTB, GRPO_MT, VERPO_MT),
        *(FT_TIME, COBALT_OWN_TIME, GRPO_MT_TIME, VERPO_MT_TIME),
    )


def check_rounds(rounds: Sequence[int], scale: Scale) -> tuple[int, ...]:
    """The numbers of rounds, in order.

    Raises UserError if one of them is given twice, or cannot be: a round ends at a checkpoint of FT-Cobalt's training.
    """
    possible = [n for n in range(2, scale.steps + 1) if scale.steps % (n * scale.save_every) == 0]
    for number in rounds:
        if number not in possible:
            raise UserError(
                f"--rounds {number}: give {' or '.join(map(str, possible))}, because each round ends at a checkpoint of"
                f" FT-Cobalt's {scale.steps} steps, one every {scale.save_every} (one round is the row FT-Cobalt)"
            )
    if len(set(rounds)) < len(rounds):
        raise UserError(f"--rounds {' '.join(map(str, rounds))}: give each number once")
    return tuple(sorted(rounds))


@dataclass(frozen=True, slots=True)
class SeedFolders:
    """Where everything of one seed lies, in the folder of a study; `fast`: its scale is `FAST`."""

    folder: Path
    seed: int
    fast: bool = False

    @property
    def world(self) -> Path:
        """The pocket world."""
        return Path("pocket") / f"{'fast_' if self.fast else ''}open_seed{self.seed}"

    @property
    def home(self) -> Path:
        """The folder of the seed."""
        return self.folder / f"seed{self.seed}"

    def step(self, name: str) -> str:
        """The name of a step of this seed."""
        return f"seed{self.seed}_{name}"

    def training(self, slug: str) -> Path:
        """A training run."""
        return self.home / f"{slug}_training"

    def data(self, slug: str) -> Path:
        """The rows of a training run."""
        return self.home / f"{slug}_data"

    def collection(self, slug: str) -> Path:
        """Trajectories that were collected to train on."""
        return self.home / f"{slug}_collection"

    def model(self, method: Method) -> Path:
        """The policy of a row."""
        if method is BASE:
            return pocket.world_model(self.world)
        return self.home / "models" / method.slug

    def evaluation(self, method: Method) -> Path:
        """The trajectories of a row on the test problems."""
        return self.home / "test" / method.slug

    def perturbed(self, method: Method) -> Path:
        """The trajectories of a row under impossible feedback."""
        return self.home / "perturbed" / method.slug
