"""A training run: `python -m cobalt.training`; the scripts train_grpo_*.sh call it."""

from cobalt.stage.cli import run_script
from cobalt.training.configuration import TrainingSettings, compose, default_scale, trains_on_cpu
from cobalt.training.installed import check_vllm, choose_attention

Arguments = TrainingSettings


def main(settings: TrainingSettings) -> int:
    """Run, and return the exit code."""
    from cobalt.training.checks import check
    from cobalt.training.launch import dry_run, launch
    from cobalt.training.memory import sizes_of
    from cobalt.training.templates import choose_thinking

    config = compose(settings)
    on_cpu = trains_on_cpu(config)
    check_vllm(on_cpu=on_cpu)
    attention = choose_attention(config, on_cpu=on_cpu)
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
    return launch(settings, config, (steps, notes))


if __name__ == "__main__":
    run_script(Arguments, main)
