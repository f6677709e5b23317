"""The methods of the comparison on the pocket world: their rows, how large they are, and where everything lies.

`studies.reproduce` plans the steps that make them. Offline training has rows of its own (`studies.offline`).
"""

from dataclasses import dataclass, replace
from pathlib import Path

STEPS = 16
"""Of FT, and of Cobalt after FT. Other methods that start from the seed model take twice as many, or three quarters
where a sample is a trajectory of about three responses."""


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the comparison.

    Attributes:
        name: In tables.
        slug: In the names of steps and folders.
        trained: The training runs that made it, each with its length in multiples of `STEPS`; None: as many steps as
            fit into the time of FT-Cobalt.
        prepared: The steps that made the data of its training, collection included.
        perturbed: Whether it is evaluated under impossible feedback, too.
    """

    name: str
    slug: str
    trained: tuple[tuple[str, float | None], ...] = ()
    prepared: tuple[str, ...] = ()
    perturbed: bool = False


def _made(slug: str, *parts: str) -> tuple[str, ...]:
    """The steps that made the data of a training run."""
    return tuple(f"{slug}_{part}" for part in parts or ("collection", "prompts", "rows"))


_FT_DATA, _COBALT_DATA = ("ft_rows",), _made("ft_cobalt")

BASE = Method("base", "base")
FT = Method("FT", "ft", (("ft", 1),), _FT_DATA, perturbed=True)
FT_MORE = Method("FT-more", "ft_more", (("ft", 2),), _FT_DATA)
COBALT = Method("Cobalt", "cobalt_ft", (("cobalt_ft", 2),), _COBALT_DATA)
COBALT_HALF = Method("Cobalt, half", "cobalt_ft_half", (("cobalt_ft", 1),), _COBALT_DATA)
COBALT_OWN = Method("Cobalt, own trajectories", "cobalt", (("cobalt", 2),), _made("cobalt"))
FT_COBALT = Method("FT-Cobalt", "ft_cobalt", (("ft", 1), ("ft_cobalt", 1)), (*_FT_DATA, *_COBALT_DATA), perturbed=True)
SECOND_ROUND = "ft_cobalt_2_rounds_2"
"""Of FT-Cobalt in two rounds: the collection, the rows and the training run of the second one."""
TWO_ROUNDS = Method(
    "FT-Cobalt, 2 rounds",
    "ft_cobalt_2_rounds",
    (("ft", 1), ("ft_cobalt", 0.5), (SECOND_ROUND, 0.5)),
    (*_FT_DATA, *_COBALT_DATA, *_made(SECOND_ROUND)),
)
FT_COBALT_PTB = Method(
    "FT-Cobalt-PTB",
    "ft_cobalt_ptb",
    (("ft", 1), ("ft_cobalt_ptb", 1)),
    (*_FT_DATA, "ft_cobalt_collection", *_made("ft_cobalt_ptb", "problems", "prompts", "rows")),
    perturbed=True,
)
GRPO_MT = Method("GRPO-MT", "grpo_mt", (("grpo_mt", 0.75),), ("grpo_mt_rows",), perturbed=True)
VERPO_MT = Method("VeRPO-MT", "verpo_mt", (("verpo_mt", 0.75),), ("verpo_mt_rows",), perturbed=True)
METHODS = (
    *(BASE, FT, FT_MORE, COBALT, COBALT_HALF, COBALT_OWN),
    *(FT_COBALT, TWO_ROUNDS, FT_COBALT_PTB, GRPO_MT, VERPO_MT),
)
"""Rows, in the order of tables.

Cobalt trains the seed model on FT's trajectories, as in the paper. After it come the same policy after as many steps of
Cobalt as FT-Cobalt has, and a Cobalt on the seed model's own trajectories.
"""

VARIANTS = (FT_MORE, COBALT_HALF, COBALT_OWN, TWO_ROUNDS, FT_COBALT_PTB)
"""Rows that the curves of equal examples leave out, so that the others can be told apart."""

EQUAL_TIME = tuple(
    replace(method, slug=f"{method.slug}_time", trained=((method.trained[0][0], None),), perturbed=False)
    for method in (FT_MORE, COBALT_OWN, GRPO_MT, VERPO_MT)
)
"""Rows that were trained until they had taken as much time as FT-Cobalt, with the collection of its trajectories."""
TIMED = (BASE, FT, FT_COBALT, *EQUAL_TIME)
"""Rows of the view of equal time, in the order of its table."""


@dataclass(frozen=True, slots=True)
class SeedFolders:
    """Folders and files of one seed, in the folder of a study.

    In `home` are SLUG_training, a training run; SLUG_data, its rows; and SLUG_collection, trajectories to train on.
    """

    folder: Path
    seed: int

    @property
    def world(self) -> Path:
        """The pocket world."""
        return Path("pocket") / f"open_seed{self.seed}"

    @property
    def home(self) -> Path:
        """The folder of the seed."""
        return self.folder / f"seed{self.seed}"

    def step(self, name: str) -> str:
        """The name of a step of this seed."""
        return f"seed{self.seed}_{name}"

    def model(self, method: Method) -> Path:
        """The policy of a row."""
        return self.world / "model" if method is BASE else self.home / "models" / method.slug

    def evaluation(self, method: Method) -> Path:
        """The trajectories of a row on the test problems."""
        return self.home / "test" / method.slug

    def perturbed(self, method: Method) -> Path:
        """The trajectories of a row under impossible feedback."""
        return self.home / "perturbed" / method.slug
