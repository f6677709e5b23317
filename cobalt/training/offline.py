"""Train a policy on judged responses: `python -m cobalt.training.offline`; scripts/train_offline_rl.sh calls it.

Nothing is sampled or judged (arXiv 2605.28409). torchrun starts a process for each GPU of this machine, and veRL's
engine trains (`cobalt_verl.trainers.offline`).
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.engine.model_check import check_folder
from cobalt.episode.token_count import load_tokenizer
from cobalt.reward.offline import OfflineSettings
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import recorded_arguments
from cobalt.training import configuration, run_folder
from cobalt.training.configuration import RunSettings, default_scale
from cobalt.training.installed import choose_attention
from cobalt.training.launch import run_trainer
from cobalt.training.machine import trains_on_cpu
from cobalt.training.memory import choose_plan, sizes_of
from cobalt.training.offline_tokens import TokenGroup, load_groups
from cobalt.training.policy import misfits, policy_path

_DECIDED = ("model.path", "engine.use_dynamic_bsz", "engine.max_token_len_per_gpu")
"""Settings that a flag or another setting decides."""


@dataclass(frozen=True)
class Arguments(RunSettings):
    """Train a policy on judged responses, without sampling or judging any."""

    data_dir: Path
    """Folder with train.jsonl and, to validate, validation.jsonl (preproc/preproc_codenet.py, preproc_judged.py)."""
    estimator: str = "rloo"
    """Advantages. sft: accepted responses alone. rloo, grpo, exponential: a policy gradient on groups."""
    scale: Annotated[str | None, tyro.conf.arg(aliases=["--profile"])] = None
    """pocket: a model of a few million parameters on a CPU. cpu: any of up to about half a billion, on a CPU. gpu-1: a
    model of half a billion to eight billion parameters, on one GPU. paper-0.5b, paper-7b: the paper's, on one GPU. By
    default the model's size and the machine decide between the first three."""

    @property
    def chosen_scale(self) -> tuple[str, str]:
        """The scale, and why it was chosen ("": by the flag)."""
        if self.scale:
            return self.scale, ""
        scale, why = default_scale(self.model)
        return "gpu-1" if scale == "paper" else scale, f" ({why})"


def compose(arguments: Arguments) -> Any:
    """The whole configuration, an OmegaConf mapping (UserError: there is no such scale, or a setting is wrong)."""
    validation = arguments.data_dir.resolve() / "validation.jsonl"
    paths: dict[str, Path | str] = {
        "data.train_files": arguments.data_dir.resolve() / "train.jsonl",
        "model.path": policy_path(arguments.model),
        "trainer.default_local_dir": arguments.output_dir.resolve() / "checkpoints",
    }
    if validation.exists():
        paths["data.val_files"] = validation
    choices = [f"offline_scale@_global_={arguments.chosen_scale[0]}", f"offline.estimator={arguments.estimator}"]
    config = configuration.compose_file("offline", arguments, choices, paths)
    choose_plan(config, arguments.output_dir)
    if errors := list(_errors(config, arguments.overrides)):
        raise UserError("; ".join(errors))
    return config


def _errors(config: Any, overrides: Sequence[str]) -> Iterator[str]:
    from omegaconf import OmegaConf

    own = OmegaConf.load(configuration.VERL_ADDITIONS / "config" / "offline_common.yaml")
    for key in (override.partition("=")[0].lstrip("+~") for override in overrides):
        of_verl = key.startswith(("data.", "trainer.", "checkpoint")) and OmegaConf.select(own, key, default=...) is ...
        if of_verl or key in _DECIDED:
            yield f"{key}: leave it out (offline training does not read it, or a flag or other setting decides it)"
    try:
        OfflineSettings.read(config.offline)
    except (UserError, TypeError, ValueError) as error:
        yield f"offline: {error}"
    data, gpus = config.data, config.trainer.n_gpus_per_node
    if data.train_batch_size % gpus:
        yield f"data.train_batch_size {data.train_batch_size} groups cannot be shared by {gpus} GPUs"


def check_data(config: Any) -> tuple[int, list[str]]:
    """The number of training steps, and sentences for a user; UserError where the policy and the groups do not fit."""
    path, longest = config.model.path, config.data.max_length
    if Path(path).is_dir() and not config.model.tokenizer_path:
        check_folder(Path(path))
    tokenizer = load_tokenizer(config.model.tokenizer_path or path)
    for error in misfits(path, "data.max_length", longest, on_cpu=trains_on_cpu(config)):
        raise UserError(error)
    batch, file = config.data.train_batch_size, config.data.train_files
    groups = _groups(config, file, tokenizer, OfflineSettings(**config.offline))
    empty = sum(not any(row.advantage for row in group) for group in groups)
    responses = sum(len(group) for group in groups)
    notes = [f"{file}: {len(groups)} groups, {empty} of them without a gradient, {responses} responses to train on"]
    if config.data.val_files:  # validation looks at all responses
        looked_at = _groups(config, config.data.val_files, tokenizer, OfflineSettings())
        notes.append(f"{config.data.val_files}: {len(looked_at)} groups to look at")
    steps = configuration.planned_steps(config, len(groups), len(groups) * config.trainer.total_epochs // batch)
    return steps, [*notes, f"{steps} training steps of {batch} groups"]


def _groups(config: Any, file: str, tokenizer: Any, settings: OfflineSettings) -> list[TokenGroup]:
    """The groups of a file, whose prompts are rendered as they were when it was made, as far as its manifest says."""
    thinking = config.data.chat_template_thinking
    made = (recorded_arguments(Path(file)) or {}).get("chat_template_thinking")
    if made not in (None, thinking):
        raise UserError(f"{file} was made with --chat_template_thinking {made}: set data.chat_template_thinking={made}")
    return load_groups(Path(file), tokenizer, settings, config.data.max_length, thinking)


@contextlib.contextmanager
def _torchrun(config: Any, output: Path, start: run_folder.Start) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The trainer: a process for each GPU."""
    from omegaconf import OmegaConf

    OmegaConf.save(config, output / "config.yaml")
    if not start.step:  # they may be of a run that was stopped before it wrote a checkpoint, from another policy
        for values in output.glob("start_*.npy"):
            values.unlink()
    on_cpu, ranks = trains_on_cpu(config), int(config.trainer.n_gpus_per_node)
    variables = configuration.process_environment(output, on_cpu=on_cpu)
    if on_cpu:  # the engine takes all cores; nothing runs at the same time
        variables["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    program = ["-m", "cobalt_verl.trainers.offline", str(output / "config.yaml"), str(start.step)]
    yield ["torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), *program], variables


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from omegaconf import OmegaConf

    config = compose(arguments)
    attention = choose_attention(config)
    steps, notes = check_data(config)
    size = f"scale {''.join(arguments.chosen_scale)}: {sizes_of(config)}"
    whole: Any = OmegaConf.to_container(config, resolve=True)
    deciding = {name: whole[name] for name in ("offline", "data", "model", "engine", "optim")}
    # Of length, frequencies and paths a continuation may have others.
    del deciding["data"]["train_files"], deciding["data"]["val_files"], deciding["model"]["path"]
    deciding |= {"stage": "offline", "scale": arguments.chosen_scale[0], "model_name": arguments.model}
    return run_trainer(arguments, config, (steps, [*notes, size, attention]), deciding, partial(_torchrun, config))


if __name__ == "__main__":
    run_script(Arguments, main)
