"""`python -m cobalt.pocket --output_dir pocket`: build the pocket world, or what is missing of it."""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.pocket.dataset import SIZES
from cobalt.pocket.open_sentences import OPEN_SHARE
from cobalt.pocket.training import TOKENIZER_DEMONSTRATIONS, Recipe
from cobalt.pocket.world import build_pocket_world
from cobalt.stage.cli import run_script
from cobalt.stage.run import check_ranges

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """Generate the pocket world's problems and train its seed model, in a few minutes on two cores."""

    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder to fill with data/ and model/; what is there already is kept."""
    seed: int = 0
    """Decides problems, demonstrations and weights."""
    demonstrations: int = Recipe().demonstrations
    """Number of conversations the seed model learns from, at least 600; fewer are faster and make a weaker model."""
    special_cases: float = 0.0
    """Probability (0 to 1) that a conversation adds a special case for a failing test instead of keeping the program.
    Above 0 the seed model learns to hack rewards."""
    open_share: float = OPEN_SHARE
    """Probability (0 to 1) that an operation is asked for by a sentence that may mean one of two things, where there is
    such a sentence: only a failing public test tells which (docs/pocket.md). 0: statements say everything."""
    test_problems: int = SIZES["test"]
    """Number of test problems."""
    problems_only: bool = False
    """Make the problems and no seed model, for a run with another model."""


def main(arguments: Arguments) -> int:
    """Build the world; the exit code."""
    check_ranges(
        arguments,
        ("demonstrations", arguments.demonstrations >= TOKENIZER_DEMONSTRATIONS, f"{TOKENIZER_DEMONSTRATIONS} or more"),
        ("special_cases", 0 <= arguments.special_cases <= 1, "from 0 to 1"),
        ("open_share", 0 <= arguments.open_share <= 1, "from 0 to 1"),
        ("test_problems", arguments.test_problems >= 1, "1 or more"),
    )
    recipe = Recipe(demonstrations=arguments.demonstrations, special_cases=arguments.special_cases)
    sizes = {**SIZES, "test": arguments.test_problems}
    world = build_pocket_world(
        arguments.output_dir, arguments.seed, sizes, recipe, arguments.open_share, problems_only=arguments.problems_only
    )
    if arguments.open_share:
        logger.info("the ceilings of its open sentences are in %s", world.ceilings)
    if not arguments.problems_only:
        logger.info("the model is %s", world.model)
        logger.info(
            "next: cobalt try PROBLEMS --model %s --prompts pocket --max_tokens 512", shlex.quote(str(world.model))
        )
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
