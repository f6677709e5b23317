"""Train a policy on judged responses: `python -m cobalt.training.offline`; scripts/train_offline_rl.sh calls it.

Nothing is sampled or judged (arXiv 2605.28409). torchrun starts a process for each GPU of this machine, and veRL's
engine trains (`cobalt_verl.trainers.offline`). The run's folder is that of every training run
(`cobalt.training.run_folder`).
"""

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.cli import run_script
from cobalt.errors import UserError
from cobalt.reward.offline import OfflineSettings
from cobalt.training import run_folder
from cobalt.training.configuration import (
    check_choice,
    compose_file,
    path_overrides,
    process_environment,
    trains_on_cpu,
)

logger = logging.getLogger(__name__)

_WHOLE = ("data.train_batch_size", "data.max_length", "data.max_token_len_per_gpu", "trainer.total_epochs")
"""Settings that must be whole numbers of 1 or more."""


@dataclass(frozen=True)
class Arguments:
    """Train a policy on judged responses, without sampling or judging any."""

    data_dir: Path
    """Folder with train.jsonl and, to validate, validation.jsonl (preproc/preproc_codenet.py, preproc_judged.py)."""
    model: str
    """The policy to start from: a folder or a hub name."""
    output_dir: Path
    """Folder for checkpoints, metrics and logs. The same command again continues there."""
    overrides: Annotated[list[str], tyro.conf.Positional]
    """Settings as key=value, such as data.train_batch_size=8 or offline.kl=0.1; they are applied last."""
    estimator: str = "rloo"
    """Advantages. sft: accepted responses alone. rloo, grpo, exponential: a policy gradient on groups."""
    scale: Annotated[str, tyro.conf.arg(aliases=["--profile"])] = "pocket"
    """pocket: a model of a few million parameters on a CPU. paper-0.5b, paper-7b: the paper's, on one GPU."""
    dry_run: bool = False
    """Check the configuration and the data without a GPU, estimate the memory, print the configuration, and stop."""
    silence_limit: float = 1800.0
    """Seconds without a line of output after which the run counts as hung and is ended."""


def compose(arguments: Arguments) -> Any:
    """The whole configuration, an OmegaConf mapping.

    Raises:
        UserError: there is no such scale, or a setting is wrong.
    """
    check_choice("offline_scale", arguments.scale)
    model, validation = Path(arguments.model), arguments.data_dir.resolve() / "validation.jsonl"
    paths: dict[str, Path | str] = {
        "data.train_files": arguments.data_dir.resolve() / "train.jsonl",
        "model.path": model.resolve() if model.exists() else arguments.model,
        "trainer.default_local_dir": arguments.output_dir.resolve() / "checkpoints",
    }
    if validation.exists():
        paths["data.val_files"] = validation
    scale = f"offline_scale@_global_={arguments.scale}"
    estimator = [f"offline.estimator={arguments.estimator}"]
    config = compose_file("offline", [scale, *path_overrides(paths), *estimator, *arguments.overrides])
    errors = [*_errors(config)]
    if errors:
        raise UserError("; ".join(errors))
    return config


def _errors(config: Any) -> Iterator[str]:
    from omegaconf import OmegaConf

    try:
        OfflineSettings(**config.offline)
    except (UserError, TypeError) as error:
        yield str(error)
    planned = config.trainer.total_training_steps
    for key in (*_WHOLE, *(("trainer.total_training_steps",) if planned is not None else ())):
        value = OmegaConf.select(config, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{key} is {value!r}: it must be a whole number of 1 or more"
            return
    if config.data.train_batch_size % config.trainer.n_gpus_per_node:
        yield (
            f"data.train_batch_size {config.data.train_batch_size} groups cannot be shared by"
            f" {config.trainer.n_gpus_per_node} GPUs"
        )
    if config.data.max_length > config.data.max_token_len_per_gpu:
        yield (
            f"data.max_length {config.data.max_length} is more than data.max_token_len_per_gpu"
            f" {config.data.max_token_len_per_gpu}, the tokens of a micro-batch"
        )


def check_data(config: Any) -> int:
    """Check that the policy and the groups fit together; returns the number of training steps.

    Raises:
        UserError: there is no such model or file, the tokenizer cannot mark the end of a response, a response is too
            long, or there are fewer groups than a step takes.
    """
    from transformers import AutoTokenizer

    from cobalt.training.offline_tokens import load_groups

    try:
        tokenizer = AutoTokenizer.from_pretrained(config.model.tokenizer_path or config.model.path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot load the tokenizer of {config.model.path}: {' '.join(str(error).split())[:200]}"
        ) from None
    settings = OfflineSettings(**config.offline)
    counts = {}
    for name in ("train_files", "val_files"):
        if config.data[name]:
            groups = load_groups(Path(config.data[name]), tokenizer, settings, config.data.max_length)
            counts[name] = len(groups)
            rows = [len(group.rows) for group in groups]
            logger.info(
                "%s: %d groups, %d of them without a response to train on, %d responses to train on",
                config.data[name],
                len(groups),
                rows.count(0),
                sum(rows),
            )
    steps = counts["train_files"] // config.data.train_batch_size
    if not steps:
        raise UserError(
            f"{config.data.train_files} has {counts['train_files']} groups, fewer than data.train_batch_size"
            f" {config.data.train_batch_size}"
        )
    most, planned = steps * config.trainer.total_epochs, config.trainer.total_training_steps
    if planned is not None and planned > most:
        raise UserError(
            f"trainer.total_training_steps {planned} is more than the {most} steps of trainer.total_epochs"
            f" {config.trainer.total_epochs}"
        )
    return int(most if planned is None else planned)


def launch(arguments: Arguments, config: Any) -> int:
    """Train, from the last checkpoint of the folder if there is one, and export the policy at the end.

    Returns:
        The exit code of torchrun.

    Raises:
        UserError: the folder holds another run.
        InfrastructureError: training hung; the last checkpoint is whole.
    """
    from omegaconf import OmegaConf

    from cobalt.services import terminations_as_interrupts
    from cobalt.training.export import export
    from cobalt.training.launch import watch
    from cobalt.training.progress import step_reporter

    output = arguments.output_dir.resolve()
    with terminations_as_interrupts(), run_folder.locked(output):
        inputs = [Path(config.data[name]) for name in ("train_files", "val_files") if config.data[name]]
        step = run_folder.prepare(output, _deciding(arguments, config), inputs)
        OmegaConf.save(config, output / "config.yaml")
        log = output / "train.log"
        logger.info("training in %s, from step %d; the log is %s", output, step, log)
        ranks = ["--standalone", "--nproc_per_node", str(config.trainer.n_gpus_per_node)]
        program = ["-m", "cobalt_verl.offline_main", str(output / "config.yaml"), str(step)]
        code = watch(
            [sys.executable, "-m", "torch.distributed.run", *ranks, *program],
            os.environ | _variables(output, config),
            log,
            arguments.silence_limit,
            step_reporter(run_folder.metrics_path(output)),
        )
        if not code and run_folder.last_checkpoint(output):
            export(output, run_folder.last_checkpoint(output), output / "model")
        return code


def _variables(output: Path, config: Any) -> dict[str, str]:
    on_cpu = trains_on_cpu(config)
    cores = len(os.sched_getaffinity(0)) // int(config.trainer.n_gpus_per_node)
    # The engine takes all cores; nothing runs beside it.
    threads = {"OMP_NUM_THREADS": str(max(1, cores))} if on_cpu else {}
    return process_environment(output, on_cpu=on_cpu) | threads


def _deciding(arguments: Arguments, config: Any) -> dict[str, Any]:
    """Settings that a continuation must share with its run; length, frequencies and paths may differ."""
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.to_container(config, resolve=True)
    chosen = {name: whole[name] for name in ("offline", "data", "model", "engine", "optim")}
    for section, name in (("data", "train_files"), ("data", "val_files"), ("model", "path")):
        chosen[section].pop(name)
    return {"stage": "offline", "scale": arguments.scale, "model_name": arguments.model} | chosen


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    config = compose(arguments)
    steps = check_data(config)
    logger.info("%d training steps of %d groups", steps, config.data.train_batch_size)
    if arguments.dry_run:
        from omegaconf import OmegaConf

        from cobalt.training.memory import estimate

        sys.stdout.write(OmegaConf.to_yaml(config, resolve=True))
        sys.stdout.flush()
        for line in (*estimate(config).lines(), "the dry run found nothing wrong"):
            logger.info("%s", line)
        return 0
    return launch(arguments, config)


if __name__ == "__main__":
    run_script(Arguments, main)
