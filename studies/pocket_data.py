"""Cobalt's data on the pocket world (`python -m studies.pocket_data`, scripts/pocket_data.sh).

The seed model writes three-turn trajectories for the training and the development problems. They are judged on hidden
tests, selected, cut into contextual prompts and written as rows for veRL. The problems themselves become the rows of
single-turn GRPO.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from cobalt.stage.cli import run_script
from studies import pocket
from studies.flags import StudyFlags
from studies.plan import Step, Study


@dataclass(frozen=True)
class Arguments(StudyFlags):
    """Make Cobalt's training data on the pocket world, from nothing to parquet."""


def data_steps(folder: Path, seed: int) -> tuple[Step, ...]:
    """The plan."""
    world = Path("pocket") / f"seed{seed}"
    model = pocket.world_model(world)
    collections = [
        # Two turns after the first one, as the paper collects.
        pocket.trajectories(
            f"{split}_collection",
            f"Collect the seed model's trajectories on the {kind} problems.",
            pocket.problems(world, split),
            folder / split,
            model,
            seed,
            turns=2,
        )
        for split, kind in (("train", "training"), ("dev", "development"))
    ]
    return (
        pocket.pocket_world(world, seed),
        *collections,
        pocket.partial_trajectory_rows(
            "multi_turn_rows", folder / "train", folder / "dev", folder / "verl_multi_turn", model
        ),
        pocket.problem_rows("single_turn_rows", world, pocket.problems(world, "dev"), folder / "verl_single_turn"),
    )


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder, seed = arguments.output_dir or Path("runs") / "pocket_data", arguments.seed
    return Study(
        "pocket data",
        folder,
        {"seed": seed},
        data_steps(folder, seed),
        shlex.join(["bash", "scripts/pocket_data.sh", str(folder), str(seed)]),
        f"rows for veRL: {folder / 'verl_multi_turn'}, {folder / 'verl_single_turn'}",
    )


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
