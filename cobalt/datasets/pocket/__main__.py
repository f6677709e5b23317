"""`python -m cobalt.datasets.pocket --output_dir pocket`: build the pocket world, or what is missing of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from cobalt.cli import run_script
from cobalt.datasets.pocket.dataset import SIZES
from cobalt.datasets.pocket.overview import overview
from cobalt.datasets.pocket.training import TOKENIZER_DEMONSTRATIONS, Recipe
from cobalt.datasets.pocket.world import build_pocket_world
from cobalt.errors import UserError
from cobalt.judge.isolation import find_bwrap


@dataclass(frozen=True)
class Arguments:
    """Generate the pocket world's problems and train its seed model, in a few minutes on two cores."""

    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder to fill with data/ and model/; what is there already is kept."""
    seed: int = 0
    """Decides problems, demonstrations and weights."""
    demonstrations: int = Recipe().demonstrations
    """How many conversations the seed model learns from, at least 600; fewer are faster and make a weaker model."""
    special_cases: float = 0.0
    """Probability (0 to 1) that a conversation adds a special case for a failing test instead of keeping the program.
    Above 0 the seed model learns to hack rewards."""
    open_share: float = 0.5
    """How often (0 to 1) an operation is asked for by a sentence that may mean one of two things, where there is such a
    sentence: only a failing public test tells which (docs/pocket.md). 0: statements say everything."""
    test_problems: int = SIZES["test"]
    """Number of test problems."""
    base_problems: int = 50
    """With --open_share above 0: on how many development problems to measure the seed model itself, in about a
    minute, with sandboxes and without any service; 0: not at all."""
    problems_only: bool = False
    """Make the problems and no seed model, for a run with another model; nothing is measured."""


def main(arguments: Arguments) -> int:
    """Build the world; the exit code."""
    if arguments.demonstrations < TOKENIZER_DEMONSTRATIONS:
        raise UserError(f"--demonstrations {arguments.demonstrations}: at least {TOKENIZER_DEMONSTRATIONS} are needed")
    for flag, share in (("special_cases", arguments.special_cases), ("open_share", arguments.open_share)):
        if not 0 <= share <= 1:
            raise UserError(f"--{flag} {share}: a share lies between 0 and 1")
    if arguments.base_problems < 0:
        raise UserError(f"--base_problems {arguments.base_problems}: a number of problems is at least 0")
    if arguments.test_problems < 1:
        raise UserError(f"--test_problems {arguments.test_problems}: at least 1 is needed")
    recipe = Recipe(demonstrations=arguments.demonstrations, special_cases=arguments.special_cases)
    sizes = {**SIZES, "test": arguments.test_problems}
    measured = 0 if arguments.problems_only or not arguments.open_share else arguments.base_problems
    if measured:
        find_bwrap()  # before anything is made, rather than minutes later
    world = build_pocket_world(
        arguments.output_dir, arguments.seed, sizes, recipe, arguments.open_share, problems_only=arguments.problems_only
    )
    if arguments.open_share:
        Console().print(overview(world, arguments.seed, measured))
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
