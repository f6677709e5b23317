"""A training run: `python -m cobalt.training`; the scripts train_grpo_*.sh call it."""

from functools import partial

from cobalt.stage.cli import run_script
from cobalt.training.configuration import TrainingSettings as Arguments
from cobalt.training.configuration import compose, default_scale
from cobalt.training.installed import choose_attention


def main(settings: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.training.checks import check
    from cobalt.training.launch import deciding, dry_run, run_trainer, verl_driver
    from cobalt.training.memory import sizes_of
    from cobalt.training.templates import choose_thinking

    config = compose(settings)
    attention = choose_attention(config)
    steps, notes = check(config)
    trainer, policy = config.trainer, config.actor_rollout_ref
    why = "" if settings.scale else f" ({default_scale(settings.model)[1]})"
    size = (
        f"scale {settings.choices['scale']}{why}: {config.data.train_batch_size} prompts x {policy.rollout.n} samples"
        f" a step, on {trainer.nnodes * trainer.n_gpus_per_node} x {trainer.device}, {sizes_of(config)}"
    )
    notes += [size, attention, choose_thinking(config)]
    if settings.dry_run or settings.print_config:
        dry_run(settings.output_dir, config)
    driver = partial(verl_driver, config)
    return run_trainer(settings, config, (steps, notes), deciding(settings, config), driver)


if __name__ == "__main__":
    run_script(Arguments, main)
