"""Flags of a training run: `python -m cobalt.training`; the scripts train_grpo_*.sh call it."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.cli import run_script
from cobalt.training.configuration import TrainingSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """Train a policy on veRL with rewards from the judge.

    The flags data, rollout, estimator and scale choose files of verl/config.
    """

    data_dir: Path
    """Folder with train.parquet and validation.parquet (preproc/verl_preproc_*.py)."""
    model: str
    """The policy to start from: a folder or a hub name."""
    output_dir: Path
    """Folder for checkpoints, metrics and logs. The same command again continues there."""
    overrides: Annotated[list[str], tyro.conf.Positional]
    """Settings of veRL as key=value, such as data.train_batch_size=8; they are applied last."""
    data: str = "problems"
    """What the prompts are. problems: the first turn alone (FT). partial_trajectories: Cobalt."""
    rollout: str = "single_turn"
    """How the samples of a prompt are generated. single_turn: one response each."""
    estimator: str = "grpo"
    """Advantages and loss. grpo: the paper's."""
    scale: Annotated[str, tyro.conf.arg(aliases=["--profile"])] = "pocket"
    """pocket: a model of a few million parameters on a CPU. paper: the paper's scale on 4 GPUs."""
    wandb: bool = False
    """Log to Weights & Biases too."""
    dry_run: bool = False
    """Compose the configuration, check it without a GPU, print it, and stop."""
    silence_limit: float = 600.0
    """Seconds without a line of output after which the run counts as hung and is ended."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.training.checks import check
    from cobalt.training.configuration import compose
    from cobalt.training.launch import dry_run, launch

    settings = TrainingSettings(
        data_dir=arguments.data_dir,
        model=arguments.model,
        output_dir=arguments.output_dir,
        data=arguments.data,
        rollout=arguments.rollout,
        estimator=arguments.estimator,
        scale=arguments.scale,
        overrides=tuple(arguments.overrides),
        wandb=arguments.wandb,
    )
    config = compose(settings)
    findings = check(config)
    for note in findings.notes:
        logger.info("%s", note)
    findings.raise_errors()
    if arguments.dry_run:
        from omegaconf import OmegaConf

        dry_run(settings.output_dir, config)
        sys.stdout.write(OmegaConf.to_yaml(config, resolve=True))
        return 0
    return launch(settings, config, silence_limit=arguments.silence_limit)


if __name__ == "__main__":
    run_script(Arguments, main)
