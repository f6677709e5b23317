"""`python -m cobalt.datasets.pocket --output_dir pocket`: build the pocket world, or what is missing of it."""

from dataclasses import dataclass
from pathlib import Path

from cobalt.cli import run_script
from cobalt.datasets.pocket.world import build_pocket_world


@dataclass(frozen=True)
class Arguments:
    """Generate the pocket world's problems and train its seed model, in a few minutes on two cores."""

    output_dir: Path
    """Folder to fill with data/ and model/; what is there already is kept."""
    seed: int = 0
    """Decides problems, demonstrations and weights."""


def main(arguments: Arguments) -> int:
    """Build the world; the exit code."""
    build_pocket_world(arguments.output_dir, arguments.seed)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
