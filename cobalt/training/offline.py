"""Train a policy on judged responses: `python -m cobalt.training.offline`; scripts/train_offline_rl.sh calls it.

Nothing is sampled or judged (arXiv 2605.28409). torchrun starts a process for each GPU of this machine, and veRL's
engine trains (`cobalt_verl.trainers.offline`). The run's folder is that of every training run
(`cobalt.training.run_folder`).
"""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    RunSettings,
    above_zero_errors,
    check_flags,
    compose_file,
    path_overrides,
    process_environment,
    trains_on_cpu,
    whole_number_errors,
)
from cobalt.training.installed import choose_attention
from cobalt.training.offline_tokens import TokenGroup, load_groups
from cobalt.training.plan import planned_steps, stops_after_plan
from cobalt.training.policy import policy_path

logger = logging.getLogger(__name__)

_LEAST = {
    "data.train_batch_size": 1,
    "data.max_length": 1,
    "data.max_token_len_per_gpu": 1,
    "data.seed": 0,
    "model.lora_rank": 0,
    "trainer.total_epochs": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.total_training_steps": 1,
    "trainer.max_ckpt_to_keep": 1,
}
"""Settings that must be whole numbers, and the least value of each."""

_OPTIONAL = ("trainer.total_training_steps", "trainer.max_ckpt_to_keep")
"""Those of them that may be null."""

_READ = {
    *_LEAST,
    *("data.val_files", "data.chat_template_thinking"),
    *("trainer.device", "trainer.project_name", "trainer.experiment_name"),
}
"""What this training reads of the sections `data`, `trainer` and `checkpoint` of veRL's configuration."""

_DECIDED = ("offline.estimator", "model.path", "engine.use_dynamic_bsz", "engine.max_token_len_per_gpu")
"""Settings of other sections that flags or other settings decide."""


@dataclass(frozen=True)
class Arguments(RunSettings):
    """Train a policy on judged responses, without sampling or judging any."""

    data_dir: Path
    """Folder with train.jsonl and, to validate, validation.jsonl (preproc/preproc_codenet.py, preproc_judged.py)."""
    estimator: str = "rloo"
    """Advantages. sft: accepted responses alone. rloo, grpo, exponential: a policy gradient on groups."""
    scale: Annotated[str, tyro.conf.arg(aliases=["--profile"])] = "pocket"
    """pocket: a model of a few million parameters on a CPU. paper-0.5b, paper-7b: the paper's, on one GPU."""


def compose(arguments: Arguments) -> Any:
    """The whole configuration, an OmegaConf mapping.

    Raises:
        UserError: there is no such scale, or a setting is wrong.
    """
    validation = arguments.data_dir.resolve() / "validation.jsonl"
    paths: dict[str, Path | str] = {
        "data.train_files": arguments.data_dir.resolve() / "train.jsonl",
        "model.path": policy_path(arguments.model),
        "trainer.default_local_dir": arguments.output_dir.resolve() / "checkpoints",
    }
    if validation.exists():
        paths["data.val_files"] = validation
    config = compose_file(
        "offline",
        [
            f"offline_scale@_global_={arguments.scale}",
            *path_overrides(paths),
            f"offline.estimator={arguments.estimator}",
            *(["trainer.logger=[tensorboard,wandb]"] if arguments.wandb else []),
            *([] if arguments.keep is None else [f"trainer.max_ckpt_to_keep={arguments.keep}"]),
            *arguments.overrides,
        ],
    )
    errors = [*_unread(arguments.overrides), *whole_number_errors(config, _LEAST, _OPTIONAL)]
    errors += above_zero_errors(config, ["optim.lr"])
    errors = errors or list(_errors(config))
    if errors:
        raise UserError("; ".join(errors))
    return config


def _errors(config: Any) -> Iterator[str]:
    try:
        OfflineSettings(**config.offline)
    except (UserError, TypeError) as error:
        yield f"offline: {error}"
    data, gpus = config.data, config.trainer.n_gpus_per_node
    if data.chat_template_thinking not in (known := get_args(TemplateThinking)):
        yield f"data.chat_template_thinking is {data.chat_template_thinking!r}: it must be one of {', '.join(known)}"
    if data.train_batch_size % gpus:
        yield f"data.train_batch_size {data.train_batch_size} groups cannot be shared by {gpus} GPUs"
    if data.max_length > data.max_token_len_per_gpu:
        yield (
            f"data.max_length {data.max_length} is more than data.max_token_len_per_gpu {data.max_token_len_per_gpu},"
            " the tokens of a micro-batch"
        )


def _unread(overrides: Sequence[str]) -> Iterator[str]:
    """Overrides of settings that this training does not read, or that something else decides."""
    for key in (override.partition("=")[0].lstrip("+~") for override in overrides):
        of_verl = key.partition(".")[0] in ("data", "trainer", "checkpoint")
        if key in _DECIDED or (of_verl and key not in _READ):
            yield f"{key}: leave it out (offline training does not read it, or a flag or other setting decides it)"


def check_data(config: Any) -> tuple[int, list[str]]:
    """Check that the policy and the groups fit together.

    Returns:
        The number of training steps, and sentences for a user.

    Raises:
        UserError: there is no such model or file, the tokenizer cannot mark the end of a response, a response is too
            long, or there are fewer groups than a step takes.
    """
    tokenizer = load_tokenizer(config.model.tokenizer_path or config.model.path)
    batch, file = config.data.train_batch_size, config.data.train_files
    groups = _groups(config, file, tokenizer, OfflineSettings(**config.offline))
    empty = sum(not any(row.advantage for row in group.rows) for group in groups)
    responses = sum(len(group.rows) for group in groups)
    notes = [f"{file}: {len(groups)} groups, {empty} of them without a gradient, {responses} responses to train on"]
    if config.data.val_files:  # validation looks at all responses
        looked_at = _groups(config, config.data.val_files, tokenizer, OfflineSettings())
        notes.append(f"{config.data.val_files}: {len(looked_at)} groups to look at")
    steps = planned_steps(config, len(groups), len(groups) * config.trainer.total_epochs // batch)
    return steps, [*notes, f"{steps} training steps of {batch} groups"]


def _groups(config: Any, file: str, tokenizer: Any, settings: OfflineSettings) -> list[TokenGroup]:
    """The groups of a file, whose prompts are rendered as they were when it was made, as far as its manifest says."""
    thinking = config.data.chat_template_thinking
    made = (recorded_arguments(Path(file)) or {}).get("chat_template_thinking")
    if made not in (None, thinking):
        raise UserError(f"{file} was made with --chat_template_thinking {made}: set data.chat_template_thinking={made}")
    return load_groups(Path(file), tokenizer, settings, config.data.max_length, thinking)


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
    check_flags(arguments)
    config = compose(arguments)
    attention = choose_attention(config, "model", ["engine"], on_cpu=trains_on_cpu(config))
    steps, notes = check_data(config)
    if stops_after_plan(arguments, config, [*notes, attention], steps):
        return 0
    code = launch(arguments, config, steps)
    if code == 0:
        logger.info("next: evaluate the policy: cobalt serve --model %s", arguments.output_dir.resolve() / "model")
    return code


if __name__ == "__main__":
    run_script(Arguments, main)
