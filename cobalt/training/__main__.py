"""Flags of a training run: `python -m cobalt.training`; the scripts train_grpo_*.sh call it."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.stage.cli import run_script
from cobalt.training.configuration import TrainingSettings, trains_on_cpu
from cobalt.training.installed import POLICY_ENGINES, POLICY_MODEL, check_vllm, choose_attention

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """Train a policy on veRL with rewards from the judge.

    The flags data, rollout, estimator and scale choose files of cobalt_verl/config.
    """

    data_dir: Path
    """Folder with train.parquet and validation.parquet (preproc/verl_preproc_*.py)."""
    model: str
    """The policy to start from: a folder or a hub name."""
    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder for checkpoints, metrics and logs. Running the same command again continues there."""
    overrides: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="[KEY=VALUE ...]")]
    """Settings of veRL as key=value, such as data.train_batch_size=8; they are applied last."""
    data: str = "problems"
    """What the prompts are. problems: the first turn alone (FT). partial_trajectories: Cobalt. episodes: problems that
    the policy repairs over several turns (GRPO-MT, VeRPO-MT)."""
    rollout: str = "single_turn"
    """How the samples of a prompt are generated. single_turn: one response each. multi_turn: an episode with feedback.
    multi_turn_until_solved: an episode that ends once a program passes all tests."""
    estimator: str = "grpo"
    """Advantages and loss. grpo: the paper's. verpo: VeRPO's, with dense rewards; it needs episodes."""
    scale: Annotated[str, tyro.conf.arg(aliases=["--profile"])] = "pocket"
    """pocket: a model of a few million parameters on a CPU. paper: the paper's scale on 4 GPUs. gpu-smoke: a few small
    steps on one GPU, to see that everything runs."""
    keep: int | None = None
    """How many of the last checkpoints to keep, in addition to the best by validation; the scale has a default."""
    wandb: bool = False
    """Log to Weights & Biases too."""
    dry_run: bool = False
    """Compose the configuration, check it without a GPU, say what was found, and stop."""
    print_config: bool = False
    """Like dry_run, and also print the whole configuration (YAML) to standard output."""
    hang_limit: float = 1800.0
    """End the run after this many seconds without a new phase line in its log or a new step in its metrics."""
    force: bool = False
    """Go on, with a warning, where the estimate says that memory or disk are far too small."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.training.checks import check
    from cobalt.training.configuration import check_flags, compose
    from cobalt.training.launch import dry_run, launch
    from cobalt.training.memory import check_memory
    from cobalt.training.templates import choose_thinking

    check_flags(arguments.data_dir, arguments.output_dir, arguments.hang_limit)
    settings = TrainingSettings(
        data_dir=arguments.data_dir,
        model=arguments.model,
        output_dir=arguments.output_dir,
        data=arguments.data,
        rollout=arguments.rollout,
        estimator=arguments.estimator,
        scale=arguments.scale,
        overrides=tuple(arguments.overrides),
        keep=arguments.keep,
        wandb=arguments.wandb,
    )
    config = compose(settings)
    check_vllm(on_cpu=trains_on_cpu(config))
    attention = choose_attention(config, POLICY_MODEL, POLICY_ENGINES, on_cpu=trains_on_cpu(config))
    findings = check(config)
    findings.raise_errors()
    rate = config.actor_rollout_ref.actor.optim.lr
    chosen = f"scale: profile {settings.scale}, learning rate {rate:g} (docs/training.md says for which models)"
    findings.notes += [chosen, attention, choose_thinking(config)]
    stops = arguments.dry_run or arguments.print_config
    if stops:
        dry_run(settings.output_dir, config)
    if arguments.print_config:
        from omegaconf import OmegaConf

        sys.stdout.write(OmegaConf.to_yaml(config, resolve=True))
        sys.stdout.flush()
    for note in findings.notes:
        logger.info("%s", note)
    check_memory(config, settings.output_dir, findings.steps, force=arguments.force)
    if stops:
        more = "" if arguments.print_config else "; --print_config prints the whole configuration"
        logger.info("OK: the dry run found nothing wrong; it is for %s%s", _size(config), more)
        return 0
    code = launch(settings, config, hang_limit=arguments.hang_limit)
    if code == 0:
        logger.info("next: evaluate the policy: cobalt serve --model %s", settings.output_dir / "model")
    return code


def _size(config: Any) -> str:
    """What a step generates, and on what, in words."""
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    place = "CPU cores" if trains_on_cpu(config) else f"{devices} GPUs"
    turns = config.cobalt.multi_turn.turns if config.cobalt.get("multi_turn") else 1
    responses = "one response" if turns == 1 else f"up to {turns} responses"
    samples = f"{config.data.train_batch_size} prompts x {config.actor_rollout_ref.rollout.n} samples"
    return f"{place}, {samples} of {responses} a step"


if __name__ == "__main__":
    run_script(Arguments, main)
