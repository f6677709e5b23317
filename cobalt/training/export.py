"""Export a checkpoint of veRL as a Hugging Face folder, which `vllm_engine_actor.py` serves.

    python -m cobalt.training.export --run_dir runs/ft --output_dir runs/ft/model

veRL's own merger does the work; this module finds the checkpoint, and moves the folder into place when it is complete.
"""

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.stage.cli import run_script
from cobalt.stage.errors import InfrastructureError, UserError, last_line
from cobalt.training import run_folder
from cobalt.training.machine import trains_on_cpu


@dataclass(frozen=True)
class Arguments:
    """Write a training run's policy as a Hugging Face folder."""

    run_dir: Path
    """The run's folder (--output_dir of the training run)."""
    output_dir: Path
    """The folder to write; an existing folder is replaced if an export made it."""
    step: int | None = None
    """The checkpoint's step; the last whole one by default."""
    best: bool = False
    """Take the checkpoint with the best validation, in place of the last one: the one that solved most, after offline
    training the one under which the accepted responses are most likely."""


logger = logging.getLogger(__name__)

_MARK = ".cobalt-export"


def exported_step(model: Path) -> int:
    """The step whose policy an export wrote into a folder (UserError: no export made it)."""
    try:
        return int((model / _MARK).read_text(encoding="utf-8").removeprefix("step "))
    except (OSError, ValueError):
        raise UserError(f"{model} was not made by python -m cobalt.training.export") from None


def export(run: Path, step: int, output: Path) -> None:
    """Write the checkpoint of a step of a run as a Hugging Face folder; InfrastructureError if veRL's merger fails.

    Raises UserError if the checkpoint is not whole or holds more than weights, or `output` exists without an export.
    """
    from omegaconf import OmegaConf

    checkpoint = run_folder.checkpoint(run, step) / "actor"
    if missing := run_folder.missing_part(run, step):
        raise UserError(f"the checkpoint {checkpoint.parent} is not whole ({missing}): export another step")
    if output.exists() and not (output / _MARK).exists():
        raise UserError(f"{output} exists and no export made it: name another folder")
    temporary = output.with_name(output.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    config: Any = OmegaConf.load(run / "config.yaml")
    model = config.get("actor_rollout_ref", config).get("model", {})  # of either trainer
    # Small policies keep their precision; large ones are served in bfloat16, and written in it. Adapters are merged.
    own = trains_on_cpu(config) or model.get("lora_rank")
    of_verl = ["verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", checkpoint, "--target_dir", temporary]
    arguments = ["cobalt_verl.merge", checkpoint, temporary] if own else of_verl
    # torch then loads weights alone, whatever veRL asks it for: loading anything else could run code.
    environment = os.environ | {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}
    environment.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    command = [sys.executable, "-m", *map(str, arguments)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "Weights only load failed" in finished.stderr:
        raise UserError(f"{checkpoint} holds more than weights, which could run code when it is loaded: do not use it")
    if finished.returncode:
        raise InfrastructureError(f"veRL's merger failed: {last_line(finished.stderr) or finished.returncode}")
    (temporary / _MARK).write_text(f"step {step}\n", encoding="utf-8")
    shutil.rmtree(output, ignore_errors=True)
    temporary.rename(output)


def main(arguments: Arguments) -> int:
    """Export, and return the exit code."""
    run, step = arguments.run_dir, arguments.step
    if step is not None and arguments.best:
        raise UserError("--step and --best both choose a checkpoint: give one of them")
    if step is None:
        step = run_folder.best_step(run) if arguments.best else run_folder.last(run)
    if not step:
        raise UserError(f"{run} has no whole checkpoint{' that was validated' if arguments.best else ''}")
    logger.info("exporting step %d", step)
    export(run, step, arguments.output_dir)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
