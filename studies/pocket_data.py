"""Cobalt's data on the pocket world (`python -m studies.pocket_data`, scripts/pocket_data.sh).

The seed model writes three-turn trajectories for the training and the development problems. They are judged on hidden
tests, selected, cut into contextual prompts and written as rows for veRL. The problems themselves become the rows of
single-turn GRPO.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from cobalt.stage.cli import run_script
from studies.flags import StudyFlags
from studies.lines import Lines, problems
from studies.plan import Study


@dataclass(frozen=True)
class Arguments(StudyFlags):
    """Make Cobalt's training data on the pocket world, from nothing to parquet."""


def plan(folder: Path, seed: int) -> Lines:
    """The steps."""
    world, lines = Path("pocket") / f"seed{seed}", Lines(seed)
    model, dev = world / "model", problems(world, "dev")
    lines.world(world, "")
    for split, kind in (("train", "training"), ("dev", "development")):
        purpose = f"Collect the seed model's trajectories on the {kind} problems."
        # Two turns after the first one, as the paper collects.
        lines.write(f"{split}_collection", purpose, problems(world, split), folder / split, model, "--turns 2")
    lines.cut("multi_turn_rows", folder / "train", folder / "dev", folder / "verl_multi_turn", model)
    single = folder / "verl_single_turn"
    lines.rows("single_turn_rows", "single", problems(world, "train"), dev, single, model, "--prompts pocket")
    return lines


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder, seed = arguments.output_dir or Path("runs") / "pocket_data", arguments.seed
    return Study(
        "pocket data",
        folder,
        {"seed": seed},
        tuple(plan(folder, seed).steps),
        shlex.join(["bash", "scripts/pocket_data.sh", str(folder), str(seed)]),
        f"rows for veRL: {folder / 'verl_multi_turn'}, {folder / 'verl_single_turn'}",
    )


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
