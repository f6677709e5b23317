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
from cobalt.training.configuration import TrainingSettings
from studies.plan import Study

logger = logging.getLogger(__name__)

_LONG = 10_000  # steps, after which every checkpoint that is kept is there


def dry_run(study: Study, show: Callable[[str], object], sizes: str | None = None) -> None:
    """Show the command of each step, a line each, and check what the training steps would train.

    `sizes` is a folder or hub name of a model with the sizes of all policies, for the estimate of memory and disk. The
    estimate then is no reason to refuse: the study will run elsewhere. None: the policies that are there are estimated.

    Raises UserError if a configuration is wrong; the message names the step.
    """
    for step in study.steps:
        with_services = ("python", "-m", "cobalt.services", *step.services.flags, "--") if step.services else ()
        show(f"# {step.name}: {step.purpose}\n{shlex.join([*with_services, *step.command])}\n")
    for step in study.steps:
        if step.training is not None:
            complete = all((study.root / path).exists() for path in step.needs)
            try:
                said = _check(study.root, step.training, sizes, complete=complete)
            except UserError as error:
                raise UserError(f"step {step.name}: {error}") from None
            checked = "checked too" if complete else "not there yet, and not checked"
            logger.info("step %s: the configuration is right, for %s; rows and policy are %s", step.name, said, checked)


def _check(root: Path, training: TrainingSettings, sizes: str | None, *, complete: bool) -> str:
    """Check a configuration; returns the machine that it is for, and what the run chooses by itself."""
    from cobalt.training import launch
    from cobalt.training.checks import check, check_settings
    from cobalt.training.configuration import compose
    from cobalt.training.installed import choose_attention
    from cobalt.training.memory import check_memory
    from cobalt.training.templates import choose_thinking

    model, output = str(root / training.model), root / training.output_dir
    run = replace(training, data_dir=root / training.data_dir, model=model, output_dir=output)
    config, steps = compose(run), None
    chosen = [choose_attention(config)]
    if complete:
        steps, _ = check(config)
        chosen.append(choose_thinking(config))
    else:
        check_settings(config)
    if sizes is not None:
        check_memory(compose(replace(run, model=sizes)), output, steps or _LONG, force=True)
    elif Path(model, "config.json").is_file():
        check_memory(config, output, steps)
    launch.dry_run(output, config)
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    return "; ".join([f"{devices} x {config.trainer.device}", *chosen])
