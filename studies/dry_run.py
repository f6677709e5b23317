"""A study without its work: the command of each step, and a check of each training run's configuration.

Nothing is started or written, and no GPU is needed. Where the rows and the policy of a training run are there already,
everything is checked that the run itself would check before it begins; where earlier steps have yet to make them, the
settings alone.
"""

import logging
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cobalt.stage.errors import UserError
from studies.plan import Step, Study

logger = logging.getLogger(__name__)

_LONG = 10_000  # steps, after which every checkpoint that is kept is there


def dry_run(study: Study, show: Callable[[str], object], sizes: str | None = None) -> None:
    """Show the command of each step, a line each, and check what the training steps would train.

    `sizes` is a folder or hub name of a model with the sizes of all policies, for the estimate of memory and disk. The
    estimate then is no reason to refuse: the study will run elsewhere. None: the policies that are there are estimated.

    Raises UserError if a configuration is wrong; the message names the step and everything that was found.
    """
    for step in study.steps:
        show(f"# {step.name}: {step.purpose}\n{shlex.join(_command(step))}\n")
    wrong = []
    for step in study.steps:
        try:
            _check_training(study, step, sizes)
        except UserError as error:
            wrong.append(f"step {step.name}: {error}")
    if wrong:
        raise UserError("; ".join(wrong))


def _command(step: Step) -> tuple[str, ...]:
    """The command as a user would run it, with its services."""
    if step.services is None:
        return step.command
    return ("python", "-m", "cobalt.services", *step.services.flags, "--", *step.command)


def _check_training(study: Study, step: Step, sizes: str | None) -> None:
    from cobalt.training import launch
    from cobalt.training.checks import check, check_settings
    from cobalt.training.configuration import compose
    from cobalt.training.installed import choose_attention
    from cobalt.training.memory import check_memory
    from cobalt.training.templates import choose_thinking

    if step.training is None:
        return
    run = replace(
        step.training,
        data_dir=study.root / step.training.data_dir,
        model=str(study.root / step.training.model),
        output_dir=study.root / step.training.output_dir,
    )
    config = compose(run)
    attention = choose_attention(config)
    complete = all((study.root / path).exists() for path in step.needs)
    steps, checked = None, "rows and policy, which earlier steps make, are not checked yet"
    if complete:
        (steps, _), checked = check(config), "the rows and the policy are checked too"
    else:
        check_settings(config)
    if sizes is not None:
        check_memory(compose(replace(run, model=sizes)), run.output_dir, steps or _LONG, force=True)
    elif Path(run.model, "config.json").is_file():
        check_memory(config, run.output_dir, steps)
    chosen = [attention, *([choose_thinking(config)] if complete else [])]
    launch.dry_run(run.output_dir, config)
    for sentence in chosen:
        logger.info("step %s: %s", step.name, sentence)
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    machine = f"{devices} GPU{'s' if devices > 1 else ''}" if config.trainer.device == "cuda" else "CPU cores"
    logger.info("step %s: the configuration is right, for %s; %s", step.name, machine, checked)
