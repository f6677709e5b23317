"""What the engine for CPUs saves: the same training run with it and with veRL's own engine, step by step.

    python benchmarks/training_step.py --data_dir ROWS --model MODEL --output_dir runs/step_benchmark [--data DATA]

The two runs take turns, `--rounds` of each, on an otherwise idle machine. The first two steps of a run are left out:
they warm up. The figures are seconds a step (medians over steps and rounds) and the ratio of the two.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cobalt.cli import run_script
from cobalt.errors import InfrastructureError

PHASES = ("gen", "update_actor", "step")
_WARM_UP = 2
_VERL = ("actor_rollout_ref.model.external_lib=null", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16")
_ENGINES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "veRL's own": (_VERL, {"VERL_ENGINE_DEVICE": "cuda"}),
    "shared prompts": ((), {}),
}


@dataclass(frozen=True)
class Arguments:
    """Compare the two engines on a CPU."""

    data_dir: Path
    """Rows of veRL."""
    model: Path
    """The policy."""
    output_dir: Path
    """Folder for the runs; replaced."""
    data: str = "problems"
    """Kind of the rows: problems, partial_trajectories or episodes."""
    steps: int = 8
    """Steps of each run."""
    rounds: int = 2
    """Runs of each engine."""


def timings(run: Path) -> list[dict[str, float]]:
    """Seconds of each phase, for each step after the warm-up."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line)["metrics"] for line in lines]
    return [{phase: metrics[f"timing_s/{phase}"] for phase in PHASES} for metrics in found][_WARM_UP:]


def train(arguments: Arguments, run: Path, settings: tuple[str, ...], variables: dict[str, str]) -> None:
    """One training run.

    Raises:
        InfrastructureError: it failed.
    """
    rollout = "multi_turn" if arguments.data == "episodes" else "single_turn"
    choices = ("--data", arguments.data, "--rollout", rollout, "--estimator", "grpo", "--scale", "pocket")
    flags = ("--data_dir", str(arguments.data_dir), "--model", str(arguments.model), "--output_dir", str(run))
    length = (f"trainer.total_training_steps={arguments.steps}", "trainer.total_epochs=100", "trainer.save_freq=-1")
    quiet = ("trainer.test_freq=-1", "trainer.val_before_train=false")
    command = [sys.executable, "-m", "cobalt.training", *choices, *flags, *length, *quiet, *settings]
    finished = subprocess.run(command, env=os.environ | variables, check=False)
    if finished.returncode:
        raise InfrastructureError(f"the training run in {run} ended with exit code {finished.returncode}")


def main(arguments: Arguments) -> int:
    """Run both engines in turns and print the medians."""
    shutil.rmtree(arguments.output_dir, ignore_errors=True)
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in _ENGINES}
    for number in range(arguments.rounds):
        for place, (name, (settings, variables)) in enumerate(_ENGINES.items()):
            run = arguments.output_dir / f"{number}_{place}"
            train(arguments, run, settings, variables)
            seconds[name] += timings(run)
    medians = {name: {phase: median(row[phase] for row in rows) for phase in PHASES} for name, rows in seconds.items()}
    for phase in PHASES:
        before, after = (medians[name][phase] for name in _ENGINES)
        print(f"{phase}: veRL's own {before:.2f} s, shared prompts {after:.2f} s, ratio {after / before:.2f}")
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
