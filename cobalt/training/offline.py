"""Train a policy on judged responses: `python -m cobalt.training.offline`; scripts/train_offline_rl.sh calls it.

Nothing is sampled or judged (arXiv 2605.28409). torchrun starts a process for each GPU of this machine, and veRL's
engine trains (`cobalt_verl.trainers.offline`). The run's folder is that of every training run
(`cobalt.training.run_folder`).
"""

import logging
import math
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args

import tyro

from cobalt.episode.chat_template import TemplateThinking
from cobalt.episode.token_count import load_tokenizer
from cobalt.reward.offline import OfflineSettings
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import recorded_arguments
from cobalt.training import checkpoints, run_folder
from cobalt.training.configuration import (
    check_choice,
    check_flags,
    compose_file,
    path_overrides,
    process_environment,
    trains_on_cpu,
)
from cobalt.training.installed import choose_attention
from cobalt.training.memory import BYTES, check_memory
from cobalt.training.policy import check_weights, policy_path

logger = logging.getLogger(__name__)

_WHOLE = {
    "data.train_batch_size": 1,
    "data.max_length": 1,
    "data.max_token_len_per_gpu": 1,
    "data.seed": 0,
    "model.lora_rank": 0,
    "trainer.total_epochs": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
}
"""Settings that must be whole numbers, and the least value of each."""

_OPTIONAL = ("trainer.total_training_steps", "trainer.max_ckpt_to_keep")
"""Settings that may be null, and otherwise must be whole numbers of 1 or more."""

_SECTIONS = ("data", "trainer", "checkpoint")
"""Sections of veRL's configuration of which overrides may change the keys of `_READ` alone."""

_DECIDED = {
    "offline.estimator": "--estimator decides it",
    "data.train_files": "--data_dir decides it",
    "model.path": "--model decides it",
    "trainer.default_local_dir": "--output_dir decides it",
    "trainer.logger": "--wandb decides it",
    "engine.use_dynamic_bsz": "micro-batches are always filled up to data.max_token_len_per_gpu",
}
"""Settings that are read, and that something else decides."""

_READ = {
    *(f"data.{name}" for name in ("val_files", "train_batch_size", "max_length", "max_token_len_per_gpu", "seed")),
    "data.chat_template_thinking",
    *(f"trainer.{name}" for name in ("device", "n_gpus_per_node", "total_epochs", "total_training_steps")),
    *(f"trainer.{name}" for name in ("save_freq", "test_freq", "max_ckpt_to_keep", "project_name", "experiment_name")),
}


@dataclass(frozen=True)
class Arguments:
    """Train a policy on judged responses, without sampling or judging any."""

    data_dir: Path
    """Folder with train.jsonl and, to validate, validation.jsonl (preproc/preproc_codenet.py, preproc_judged.py)."""
    model: str
    """The policy to start from: a folder or a hub name."""
    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder for checkpoints, metrics and logs. Running the same command again continues there."""
    overrides: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="[KEY=VALUE ...]")]
    """Settings as key=value, such as data.train_batch_size=8 or offline.kl=0.1; they are applied last."""
    estimator: str = "rloo"
    """Advantages. sft: accepted responses alone. rloo, grpo, exponential: a policy gradient on groups."""
    scale: Annotated[str, tyro.conf.arg(aliases=["--profile"])] = "pocket"
    """pocket: a model of a few million parameters on a CPU. paper-0.5b, paper-7b: the paper's, on one GPU."""
    dry_run: bool = False
    """Check the configuration and the data without a GPU, estimate the memory, and stop."""
    print_config: bool = False
    """Like dry_run, and also print the whole configuration (YAML) to standard output."""
    keep: int | None = None
    """How many of the last checkpoints to keep, in addition to the best by validation; the scale has a default."""
    wandb: bool = False
    """Log to Weights & Biases too; WANDB_API_KEY or `wandb login` gives access."""
    hang_limit: float = 1800.0
    """End the run after this many seconds without a new phase line in its log or a new step in its metrics."""
    force: bool = False
    """Go on, with a warning, where the estimate says that memory or disk are far too small."""


def compose(arguments: Arguments) -> Any:
    """The whole configuration, an OmegaConf mapping.

    Raises:
        UserError: there is no such scale, or a setting is wrong.
    """
    check_choice("offline_scale", arguments.scale)
    validation = arguments.data_dir.resolve() / "validation.jsonl"
    paths: dict[str, Path | str] = {
        "data.train_files": arguments.data_dir.resolve() / "train.jsonl",
        "model.path": policy_path(arguments.model),
        "trainer.default_local_dir": arguments.output_dir.resolve() / "checkpoints",
    }
    if validation.exists():
        paths["data.val_files"] = validation
    scale = f"offline_scale@_global_={arguments.scale}"
    loggers = ["trainer.logger=[tensorboard,wandb]"] if arguments.wandb else []
    kept = [] if arguments.keep is None else [f"trainer.max_ckpt_to_keep={arguments.keep}"]
    given = [scale, *path_overrides(paths), f"offline.estimator={arguments.estimator}", *loggers, *kept]
    config = compose_file("offline", [*given, *arguments.overrides])
    errors = [*_errors(config), *_unread(compose_file("offline", given), config)]
    if errors:
        raise UserError("; ".join(errors))
    return config


def _errors(config: Any) -> Iterator[str]:
    from hydra.errors import InstantiationException
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    unknown = sorted(set(config.offline) - {field.name for field in fields(OfflineSettings)})
    if unknown:
        yield f"offline.{unknown[0]}: leave it out (there is no such setting)"
    else:
        try:
            OfflineSettings(**config.offline)
        except (UserError, TypeError) as error:
            yield str(error)
    wrong = False
    optional = {key: 1 for key in _OPTIONAL if OmegaConf.select(config, key) is not None}
    for key, least in (_WHOLE | optional).items():
        value = OmegaConf.select(config, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            wrong = True
            yield f"{key} is {value!r}: it must be a whole number of {least} or more"
    rate, kind, thinking = config.optim.lr, str(config.engine.model_dtype), config.data.chat_template_thinking
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < math.inf:
        yield f"optim.lr is {rate!r}: it must be above 0 and finite"
    if config.trainer.device not in ("cpu", "cuda"):
        yield f"trainer.device is {config.trainer.device!r}: it must be cpu or cuda"
    if kind not in BYTES:
        yield f"engine.model_dtype is {kind!r}: it must be one of {', '.join(BYTES)}"
    if thinking not in get_args(TemplateThinking):
        yield f"data.chat_template_thinking is {thinking!r}: it must be one of {', '.join(get_args(TemplateThinking))}"
    for section in ("optim", "engine", "checkpoint"):
        try:
            omega_conf_to_dataclass(config[section])
        except (InstantiationException, TypeError, ValueError) as error:
            cause = error.__cause__ or error  # veRL's own checks are assertions, mostly without a message
            refused = str(cause) or traceback.extract_tb(cause.__traceback__)[-1].line
            yield f"veRL does not take {section}: {refused}"
    if wrong:
        return
    if config.data.train_batch_size % config.trainer.n_gpus_per_node:
        yield (
            f"data.train_batch_size {config.data.train_batch_size} groups cannot be shared by"
            f" {config.trainer.n_gpus_per_node} GPUs"
        )
    if config.engine.max_token_len_per_gpu != config.data.max_token_len_per_gpu:
        yield "engine.max_token_len_per_gpu: leave it out (data.max_token_len_per_gpu decides it)"
    if config.data.max_length > config.data.max_token_len_per_gpu:
        yield (
            f"data.max_length {config.data.max_length} is more than data.max_token_len_per_gpu"
            f" {config.data.max_token_len_per_gpu}, the tokens of a micro-batch"
        )


def _unread(without: Any, config: Any) -> Iterator[str]:
    """Overrides of settings that this training does not read, or not from there."""
    from omegaconf import OmegaConf

    names = [f"{section}.{name}" for section in _SECTIONS for name in sorted({*without[section], *config[section]})]
    for key in dict.fromkeys([*names, *_DECIDED]):
        before, after = (OmegaConf.select(part, key) for part in (without, config))
        if key not in _READ and before != after:
            yield f"{key}: leave it out ({_DECIDED.get(key, 'offline training does not read it')})"


def _check_template(groups: Path, thinking: str) -> None:
    """Check that prompts are rendered as they were when the groups were made, as far as their manifest says.

    Raises:
        UserError: they are not, or the manifest is not readable.
    """
    made = (recorded_arguments(groups) or {}).get("chat_template_thinking")
    if made not in (None, thinking):
        raise UserError(
            f"{groups} was made with --chat_template_thinking {made}: set data.chat_template_thinking={made}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do.

    Attributes:
        steps: How many training steps.
        lines: Sentences for a user.
    """

    steps: int
    lines: tuple[str, ...]


def check_data(config: Any) -> Plan:
    """Check that the policy and the groups fit together.

    Raises:
        UserError: there is no such model or file, the tokenizer cannot mark the end of a response, a response is too
            long, or there are fewer groups than a step takes.
    """
    from cobalt.training.offline_tokens import load_groups

    if not Path(config.data.train_files).is_file():
        raise UserError(
            f"there is no {config.data.train_files}: make it with preproc/preproc_codenet.py or"
            " preproc/preproc_judged.py"
        )
    tokenizer = load_tokenizer(config.model.tokenizer_path or config.model.path)
    check_weights(config.model.path)
    settings = OfflineSettings(**config.offline)
    counts, lines = {}, []
    for name in ("train_files", "val_files"):
        if config.data[name]:
            _check_template(Path(config.data[name]), config.data.chat_template_thinking)
            groups = load_groups(
                Path(config.data[name]),
                tokenizer,
                settings if name == "train_files" else OfflineSettings(),  # validation looks at all responses
                config.data.max_length,
                config.data.chat_template_thinking,
            )
            counts[name] = len(groups)
            responses = sum(len(group.rows) for group in groups)
            use, silent = "to look at", ""
            if name == "train_files":
                empty = sum(not any(row.advantage for row in group.rows) for group in groups)
                use, silent = "to train on", f", {empty} of them without a gradient"
            lines.append(f"{config.data[name]}: {len(groups)} groups{silent}, {responses} responses {use}")
    if counts["train_files"] < config.data.train_batch_size:
        raise UserError(
            f"{config.data.train_files} has {counts['train_files']} groups, fewer than data.train_batch_size"
            f" {config.data.train_batch_size}: set data.train_batch_size"
        )
    most = counts["train_files"] * config.trainer.total_epochs // config.data.train_batch_size
    planned = config.trainer.total_training_steps
    if planned is not None and planned > most:
        raise UserError(
            f"trainer.total_training_steps {planned} is more than the {most} steps of trainer.total_epochs"
            f" {config.trainer.total_epochs}"
        )
    steps = int(most if planned is None else planned)
    return Plan(steps, (*lines, f"{steps} training steps of {config.data.train_batch_size} groups"))


def launch(arguments: Arguments, config: Any, steps: int) -> int:
    """Train, from the last checkpoint of the folder if there is one, and export the policy at the end.

    Args:
        arguments: The flags.
        config: What `compose` made of them.
        steps: How many training steps the run has.

    Returns:
        The exit code of torchrun.

    Raises:
        UserError: the folder holds another run.
        InfrastructureError: training hung; the last checkpoint is whole.
    """
    from omegaconf import OmegaConf

    from cobalt.stage.atomic import locked_folder
    from cobalt.stage.cli import terminations_as_interrupts
    from cobalt.training.export import export
    from cobalt.training.watching import watch

    output = arguments.output_dir.resolve()
    with terminations_as_interrupts(), locked_folder(output, run_folder.LOCK):
        inputs = [Path(config.data[name]) for name in ("train_files", "val_files") if config.data[name]]
        step = run_folder.prepare(output, _deciding(arguments, config), inputs).step
        if not step:  # they may be of a run that was stopped before it wrote a checkpoint, from another policy
            for kept in output.glob("start_*.npz"):
                kept.unlink()
        OmegaConf.save(config, output / "config.yaml")
        log = output / "train.log"
        if step >= steps and (output / "model").exists():
            logger.info("%s is complete: %d steps; the trained policy is %s", output, step, output / "model")
            return 0
        logger.info("training in %s, from step %d; the log is %s", output, step, log)
        ranks = ["--standalone", "--nproc_per_node", str(config.trainer.n_gpus_per_node)]
        program = ["-m", "cobalt_verl.offline_main", str(output / "config.yaml"), str(step)]
        code = watch(
            [sys.executable, "-m", "torch.distributed.run", *ranks, *program],
            os.environ | _variables(output, config),
            output,
            arguments.hang_limit,
        )
        if not code and checkpoints.last(output):
            export(output, checkpoints.last(output), output / "model")
            logger.info("trained to step %d; the policy is %s", checkpoints.last(output), output / "model")
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
    check_flags(arguments.data_dir, arguments.output_dir, arguments.hang_limit)
    config = compose(arguments)
    attention = choose_attention(config, "model", ["engine"], on_cpu=trains_on_cpu(config))
    plan = check_data(config)
    if arguments.print_config:
        from omegaconf import OmegaConf

        sys.stdout.write(OmegaConf.to_yaml(config, resolve=True))
        sys.stdout.flush()
    for line in (*plan.lines, attention):
        logger.info("%s", line)
    check_memory(config, arguments.output_dir, plan.steps, force=arguments.force)
    if arguments.dry_run or arguments.print_config:
        more = "" if arguments.print_config else "; --print_config prints the whole configuration"
        logger.info("OK: the dry run found nothing wrong%s", more)
        return 0
    code = launch(arguments, config, plan.steps)
    if code == 0:
        logger.info("next: evaluate the policy: cobalt serve --model %s", arguments.output_dir.resolve() / "model")
    return code


if __name__ == "__main__":
    run_script(Arguments, main)
