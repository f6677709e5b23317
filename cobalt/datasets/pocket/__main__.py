"""`python -m cobalt.datasets.pocket --output_dir pocket`: build the pocket world, or what is missing of it."""

from dataclasses import dataclass
from pathlib import Path

from cobalt.cli import run_script
from cobalt.datasets.pocket.training import TOKENIZER_DEMONSTRATIONS, Recipe
from cobalt.datasets.pocket.world import build_pocket_world
from cobalt.errors import UserError


@dataclass(frozen=True)
class Arguments:
    """Generate the pocket world's problems and train its seed model, in a few minutes on two cores."""

    output_dir: Path
    """Folder to fill with data/ and model/; what is there already is kept."""
    seed: int = 0
    """Decides problems, demonstrations and weights."""
    demonstrations: int = Recipe().demonstrations
    """How many conversations the seed model learns from, at least 600; fewer are faster and make a weaker model."""
    special_cases: float = 0.0
    """Probability (0 to 1) that a conversation adds a special case for a failing test instead of keeping the program.
    Above 0 the seed model learns to hack rewards."""


def main(arguments: Arguments) -> int:
    """Build the world; the exit code."""
    if arguments.demonstrations < TOKENIZER_DEMONSTRATIONS:
        raise UserError(f"--demonstrations {arguments.demonstrations}: at least {TOKENIZER_DEMONSTRATIONS} are needed")
    if not 0 <= arguments.special_cases <= 1:
        raise UserError(f"--special_cases {arguments.special_cases}: it must lie between 0 and 1")
    recipe = Recipe(demonstrations=arguments.demonstrations, special_cases=arguments.special_cases)
    build_pocket_world(arguments.output_dir, arguments.seed, recipe=recipe)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
