"""A training run: `python -m cobalt.training`; the scripts train_grpo_*.sh call it."""

import logging
from typing import Any

from cobalt.stage.cli import run_script
from cobalt.training.configuration import TrainingSettings, trains_on_cpu
from cobalt.training.installed import POLICY_ENGINES, POLICY_MODEL, check_vllm, choose_attention

logger = logging.getLogger(__name__)

Arguments = TrainingSettings


def main(settings: TrainingSettings) -> int:
    """Run, and return the exit code."""
    from cobalt.training.checks import check
    from cobalt.training.configuration import check_flags, compose
    from cobalt.training.launch import dry_run, launch
    from cobalt.training.plan import stops_after_plan
    from cobalt.training.templates import choose_thinking

    check_flags(settings)
    config = compose(settings)
    check_vllm(on_cpu=trains_on_cpu(config))
    attention = choose_attention(config, POLICY_MODEL, POLICY_ENGINES, on_cpu=trains_on_cpu(config))
    findings = check(config)
    findings.raise_errors()
    rate = config.actor_rollout_ref.actor.optim.lr
    chosen = f"scale: profile {settings.scale}, learning rate {rate} (docs/training.md says for which models)"
    notes = [*findings.notes, chosen, attention, choose_thinking(config), f"the run is for {_size(config)}"]
    if settings.dry_run or settings.print_config:
        dry_run(settings.output_dir, config)
    if stops_after_plan(settings, config, notes, findings.steps):
        return 0
    code = launch(settings, config)
    if code == 0:
        logger.info("next: evaluate the policy: cobalt serve --model %s", settings.output_dir / "model")
    return code


def _size(config: Any) -> str:
    """What a step generates, and on what, in words."""
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    hardware = "CPU cores" if trains_on_cpu(config) else f"{devices} GPUs"
    turns = config.cobalt.multi_turn.turns if config.cobalt.get("multi_turn") else 1
    responses = "one response" if turns == 1 else f"up to {turns} responses"
    samples = f"{config.data.train_batch_size} prompts x {config.actor_rollout_ref.rollout.n} samples"
    return f"{hardware}, {samples} of {responses} a step"


if __name__ == "__main__":
    run_script(Arguments, main)
