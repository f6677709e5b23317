"""What a run of either trainer will do: its steps, and what a dry run shows."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.training.configuration import RunSettings
from cobalt.training.memory import check_memory

logger = logging.getLogger(__name__)


def planned_steps(config: Any, count: int, most: int) -> int:
    """The steps of a run of either trainer.

    Args:
        config: The composed configuration.
        count: How many rows or groups there are to train on.
        most: Steps of all epochs.

    Raises:
        UserError: there are too few rows for a step, or too few epochs for the steps that are set, so that the run
            would end before its last step is reached and saved.
    """
    batch, planned = config.data.train_batch_size, config.trainer.total_training_steps
    if count < batch:
        raise UserError(f"{config.data.train_files} has {count} rows, fewer than data.train_batch_size {batch}")
    if planned is not None and planned > most:
        raise UserError(
            f"trainer.total_training_steps {planned} is more than the {most} steps of trainer.total_epochs"
            f" {config.trainer.total_epochs}"
        )
    return int(most if planned is None else planned)


def stops_after_plan(settings: RunSettings, config: Any, notes: Sequence[str], steps: int | None) -> bool:
    """Show what a run of either trainer will do and need; whether the flags ask for nothing else.

    Raises:
        UserError: memory or disk are far too small (`cobalt.training.memory.check_memory`).
    """
    from omegaconf import OmegaConf

    if settings.print_config:
        sys.stdout.write(OmegaConf.to_yaml(config, resolve=True))
        sys.stdout.flush()
    for note in notes:
        logger.info("%s", note)
    check_memory(config, settings.output_dir, steps, force=settings.force)
    if settings.dry_run or settings.print_config:
        logger.info("OK: the dry run found nothing wrong; --print_config prints the whole configuration")
        return True
    return False
