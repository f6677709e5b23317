"""Check a training run before it begins, without a GPU: data, batches, lengths, vocabulary.

`check` reads the whole configuration that `cobalt.training.configuration` composed. It refuses what would make a run
wrong, or would stop it after its first samples. It notes what it cannot check (a hub model that is not on this
machine). What veRL refuses as a run starts is left to veRL.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cobalt.episode.token_count import NoChatTemplate, PromptTokenCounter, load_tokenizer
from cobalt.problems.problem import TestSuite
from cobalt.reward.verpo import VerpoSettings
from cobalt.stage.errors import UserError
from cobalt.training.configuration import above_zero_errors, trains_on_cpu, whole_number_errors
from cobalt.training.episodes import episode_settings
from cobalt.training.plan import planned_steps
from cobalt.training.policy import architecture
from cobalt.training.templates import REQUIRE_THINKING, template_errors

_FIELDS = {
    "data_source": "data_source",
    "prompt": "content",
    "reward_model": "ground_truth",
    "extra_info": "prev_best_pass_rate",
}
"""Columns that veRL and the reward function read, and the field that each must have."""

_LEAST = {
    "data.train_batch_size": 1,
    "data.max_prompt_length": 1,
    "data.max_response_length": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 1,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 1,
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 1,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.nnodes": 1,
    "trainer.total_epochs": 1,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
}
"""Settings that must be whole numbers, and the least value of each."""

_MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
_OPTIONAL = (
    "trainer.total_training_steps",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "cobalt.keep_checkpoints",
)
"""Settings that may be null, and otherwise must be whole numbers of 1 or more."""

_ABOVE_ZERO = ("actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.rollout.temperature")

_REMOVING = (
    "trainer.max_actor_ckpt_to_keep",
    "trainer.remove_previous_ckpt_in_save",
    "trainer.del_local_ckpt_after_load",
)
"""Settings by which veRL removes checkpoints before a newer one is whole."""

_BY_COMPARISON = {"grpo": "GRPO", "verpo": "VeRPO"}
"""Estimators that compare the samples of a prompt; of several turns, trajectory by trajectory and not row by row."""

_NOT_TRAINED = {
    "gae": "a critic, which this project does not train",
    "remax": "a greedy response beside the samples, which veRL's trainer does not generate here",
}
"""Estimators of veRL that need more than the samples of a prompt, and what they need."""

_NAMED = 5
"""How many over-long prompts a message names."""


@dataclass(slots=True)
class Findings:
    """What was found: `errors` stop the run, `notes` are for information, `steps` are those of the whole run."""

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: int | None = None

    def raise_errors(self) -> None:
        """Raise all errors as one.

        Raises:
            UserError: there are any.
        """
        if self.errors:
            raise UserError("; ".join(self.errors))


def settings_errors(config: Any) -> list[str]:
    """What is wrong with the settings alone, whatever the data and the policy are."""
    optional = (*_OPTIONAL, _MICRO) if config.actor_rollout_ref.actor.use_dynamic_bsz else _OPTIONAL
    wrong = list(whole_number_errors(config, _LEAST | dict.fromkeys((*_OPTIONAL, _MICRO), 1), optional))
    wrong += above_zero_errors(config, _ABOVE_ZERO)
    parts = (_unsupported, _reward_errors, _batch_errors, _dynamic_batch_errors, _episode_errors)
    return wrong or [error for part in parts for error in part(config)]


def check(config: Any) -> Findings:
    """Check everything that needs no GPU, but memory and disk (`cobalt.training.memory`)."""
    findings = Findings([*settings_errors(config), *_environment_errors(config)])
    if findings.errors:
        return findings
    counter = _check_policy(config, findings)
    train, validation = (_rows(config.data[f"{split}_files"], config, counter, findings) for split in ("train", "val"))
    if train is None or validation is None:
        return findings
    steps = train // config.data.train_batch_size
    try:
        findings.steps = planned_steps(config, train, steps * config.trainer.total_epochs)
    except UserError as error:
        findings.errors.append(str(error))
    if config.algorithm.filter_groups.enable:
        findings.notes.append("algorithm.filter_groups departs from the paper: batches lack groups of equal rewards")
    findings.notes.append(
        f"{train} training rows, {validation} validation rows: {steps} steps an epoch, {findings.steps} in all"
    )
    return findings


def _environment_errors(config: Any) -> Iterator[str]:
    """Variables of the shell that break a run on GPUs.

    veRL switches expandable segments of the actor's memory on and off by itself. Set for all processes they reach the
    engine, whose sleep mode and whose transfer of weights cannot use such memory.
    """
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        value = os.environ.get(name, "")
        if not trains_on_cpu(config) and re.search(r"expandable_segments\s*:\s*true", value, re.IGNORECASE):
            yield f"{name}={value}: the engine cannot sleep with expandable_segments, so unset the variable"


def _unsupported(config: Any) -> Iterator[str]:
    """Settings of veRL with which training would be wrong, would lose checkpoints, or would stop after its samples."""
    from omegaconf import OmegaConf

    rollout, estimator = config.actor_rollout_ref.rollout, str(config.algorithm.adv_estimator)
    if rollout.top_p != 1 or rollout.top_k != -1:
        yield (
            f"training samples with top_p {rollout.top_p} and top_k {rollout.top_k}: the importance ratio is biased"
            " unless actor_rollout_ref.rollout.top_p=1 and top_k=-1"
        )
    if estimator in _BY_COMPARISON and rollout.n < 2:
        yield (
            f"actor_rollout_ref.rollout.n is {rollout.n}: {_BY_COMPARISON[estimator]} compares at least 2 samples of a"
            " prompt"
        )
    if estimator in _NOT_TRAINED:
        yield (
            f"algorithm.adv_estimator={estimator} needs {_NOT_TRAINED[estimator]}: choose an estimator by --estimator"
            f" ({' or '.join(_BY_COMPARISON)}), or another of veRL's, such as rloo"
        )
    if config.data.truncation not in ("error", "left"):
        yield f"data.truncation is {config.data.truncation!r}, which cuts off the generation prompt: use error"
    if config.algorithm.filter_groups.enable and config.cobalt.get("multi_turn"):
        yield (
            "algorithm.filter_groups compares the rewards of rows, and a trajectory of several turns may have several:"
            " leave it off"
        )
    if config.trainer.v1.trainer_mode != "sync" or not config.trainer.use_v1:
        yield "only veRL's synchronous trainer is supported: leave trainer.use_v1 and trainer.v1.trainer_mode alone"
    if not OmegaConf.is_dict(config.data.apply_chat_template_kwargs):
        yield f"data.apply_chat_template_kwargs is {config.data.apply_chat_template_kwargs!r}: it must be a mapping"
    for key in _REMOVING:
        if OmegaConf.select(config, key):
            yield f"{key} removes a checkpoint before a newer one is whole: leave it, and give --keep"


def _reward_errors(config: Any) -> Iterator[str]:
    """Settings of the reward and of the loss's mean."""
    from omegaconf import OmegaConf

    reward = config.reward
    by_function = reward.custom_reward_function.path and reward.reward_manager.name == "naive"
    if not reward.num_workers and (not by_function or reward.reward_model.enable):
        yield (
            "reward.num_workers=0 computes rewards by reward.custom_reward_function alone: set it above 0 for another"
            " reward.reward_manager or for a reward.reward_model"
        )
    required = OmegaConf.select(config, REQUIRE_THINKING, default="auto")
    if required not in (True, False, "auto"):
        yield f"{REQUIRE_THINKING} is {required!r}: it must be auto, true or false"
    chosen, mode = config.cobalt.loss_agg, config.actor_rollout_ref.actor.loss_agg_mode
    if chosen not in ("mini_batch", "micro_batch"):
        yield f"cobalt.loss_agg is {chosen!r}: it must be mini_batch or micro_batch"
    elif chosen == "micro_batch" and mode != "token-mean":
        yield (
            f"cobalt.loss_agg=micro_batch averages over tokens, but actor_rollout_ref.actor.loss_agg_mode is {mode!r}:"
            " use token-mean, or cobalt.loss_agg=mini_batch"
        )


def _episode_errors(config: Any) -> Iterator[str]:
    """Settings of several turns, and of the estimator that needs the outcomes of their tests."""
    try:
        episodes = episode_settings(config)
    except UserError as error:
        yield str(error)
        return
    estimator = config.algorithm.adv_estimator
    if episodes is not None and estimator not in _BY_COMPARISON:
        yield (
            f"algorithm.adv_estimator {estimator!r} compares rows, and a trajectory of several turns may have several:"
            f" use one of {', '.join(_BY_COMPARISON)}"
        )
    if estimator != "verpo":
        return
    if episodes is None:
        yield (
            "the estimator verpo needs the outcomes of single tests, which this rollout does not keep: use the rollout"
            " multi_turn, for one turn with cobalt.multi_turn.turns=1"
        )
    elif not episodes.all_tests_every_turn:
        yield "the estimator verpo needs the outcomes of all tests at every turn: set cobalt.judge_every_turn=true"
    if config.algorithm.use_kl_in_reward:
        yield "the estimator verpo has rewards of its own: leave algorithm.use_kl_in_reward off"
    try:
        VerpoSettings(**config.algorithm.verpo)
    except (AttributeError, TypeError, UserError) as error:  # the section is missing, or has another constant
        yield f"algorithm.verpo, which --estimator verpo sets, has wrong constants: {error}"


def _batch_errors(config: Any) -> Iterator[str]:
    """Batches that cannot be shared by GPUs or cut into micro-batches."""
    actor, rollout, ref = (config.actor_rollout_ref[part] for part in ("actor", "rollout", "ref"))
    gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    batch, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    shares = [
        ("data.train_batch_size", batch, "actor.ppo_mini_batch_size", mini),
        ("the number of GPUs", gpus, "rollout.tensor_model_parallel_size", rollout.tensor_model_parallel_size),
        ("actor.ppo_mini_batch_size x rollout.n", mini * rollout.n, "the number of GPUs", gpus),
    ]
    micro = "log_prob_micro_batch_size_per_gpu"
    for name, samples, key, dynamic, size in (
        ("a mini-batch", mini, _MICRO, actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu),
        ("a batch", batch, f"rollout.{micro}", rollout.log_prob_use_dynamic_bsz, rollout[micro]),
        ("a batch", batch, f"ref.{micro}", ref.log_prob_use_dynamic_bsz, ref[micro]),
    ):
        if size and not dynamic:
            shares.append((f"what a GPU has of the samples of {name}", samples * rollout.n // gpus, key, size))
    for name, number, key, divisor in shares:
        if number % divisor:
            yield f"{name}, {number}, is not a multiple of {key}, {divisor}"


def _dynamic_batch_errors(config: Any) -> Iterator[str]:
    """Micro-batches with a limit of tokens in place of a number of samples (`use_dynamic_bsz`)."""
    actor, rollout, ref = (config.actor_rollout_ref[part] for part in ("actor", "rollout", "ref"))
    if actor.use_dynamic_bsz and config.cobalt.loss_agg == "micro_batch":
        yield (
            "cobalt.loss_agg=micro_batch weighs a token by its micro-batch, and actor_rollout_ref.actor.use_dynamic_bsz"
            " makes micro-batches by length: set cobalt.loss_agg=mini_batch, or use_dynamic_bsz=false"
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    for name, dynamic, limit in (
        ("actor.ppo", actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu),
        ("rollout.log_prob", rollout.log_prob_use_dynamic_bsz, rollout.log_prob_max_token_len_per_gpu),
        ("ref.log_prob", ref.log_prob_use_dynamic_bsz, ref.log_prob_max_token_len_per_gpu),
    ):
        if dynamic and limit * actor.ulysses_sequence_parallel_size < longest:
            yield (
                f"actor_rollout_ref.{name}_max_token_len_per_gpu {limit} is less than one sample of"
                f" data.max_prompt_length + data.max_response_length = {longest} tokens"
            )


def _rows(files: Any, config: Any, counter: PromptTokenCounter | None, findings: Findings) -> int | None:
    """The rows of a file, whose columns, tests and lengths of prompts are checked; None if it cannot be read."""
    import pyarrow

    if not isinstance(files, str):
        findings.errors.append(f"data.train_files or data.val_files is {files!r}: it must be one path")
        return None
    try:
        return _check_file(Path(files), config, counter, findings)
    except UserError as error:
        findings.errors.append(str(error))
    except (OSError, pyarrow.ArrowException, UnicodeError) as error:  # what a damaged file raises
        findings.errors.append(f"{files} is not a parquet file: {' '.join(str(error).split())}")
    return None


def _check_file(path: Path, config: Any, counter: PromptTokenCounter | None, findings: Findings) -> int:
    from pyarrow import parquet

    longest = config.data.max_prompt_length
    if not path.is_file():
        raise UserError(f"there is no {path}: make it with preproc/verl_preproc_*.py")
    with parquet.ParquetFile(path) as file:
        count: int = file.metadata.num_rows
        if not count:
            raise UserError(f"{path} has no rows")
        columns = [file.schema.column(index).path.split(".") for index in range(len(file.schema))]
        several = [("extra_info", "episode")] if config.cobalt.get("multi_turn") else []
        for column, inner in (*_FIELDS.items(), *several):
            if not any(names[0] == column and inner in names for names in columns):
                raise UserError(
                    f"{path} has no column {column!r} with a field {inner!r}: make it with preproc/verl_preproc_*.py"
                    f"{' --episodes, because the rollout has several turns' if inner == 'episode' else ''}"
                )
        long: list[str] = []
        for batch in file.iter_batches(1000, columns=["prompt", "reward_model", "extra_info"]):
            rows = batch.to_pylist()
            lengths = counter.count([row["prompt"] for row in rows]) if counter else [0] * len(rows)
            for row, length in zip(rows, lengths, strict=True):
                extra = row["extra_info"] or {}
                name = extra.get("id", extra.get("index"))
                try:
                    TestSuite.parse((row["reward_model"] or {}).get("ground_truth"))
                except UserError as error:
                    raise UserError(f"{path}: the tests of row {name} cannot be read: {error}") from None
                if length > longest:
                    long.append(f"{name} ({length})")
    if long:
        findings.errors.append(
            f"{path}: {len(long)} prompts are longer than data.max_prompt_length {longest}:"
            f" {', '.join(long[:_NAMED])}{', ...' if len(long) > _NAMED else ''}"
        )
    return count


def _check_policy(config: Any, findings: Findings) -> PromptTokenCounter | None:
    """Check the policy's chat template, length and vocabulary; what counts its prompts, None if it is not here."""
    from omegaconf import OmegaConf

    model = config.actor_rollout_ref.model
    arguments: Any = OmegaConf.to_container(config.data.apply_chat_template_kwargs)
    try:
        counter = PromptTokenCounter(model.tokenizer_path or model.path, arguments)
        settings = architecture(model.path).get_text_config()
    except NoChatTemplate as error:  # of a folder, and of a model of the Hub that is on this machine
        findings.errors.append(str(error))
        return None
    except UserError as error:
        _note_missing(model.path, str(error), findings)
        return None
    findings.errors += template_errors(config, counter)
    asked = config.data.max_prompt_length + config.data.max_response_length
    positions = getattr(settings, "max_position_embeddings", None)  # some architectures have no limit
    length = min(positions or 2**62, config.actor_rollout_ref.rollout.max_model_len or 2**62)
    if asked > length:
        findings.errors.append(
            f"data.max_prompt_length {config.data.max_prompt_length} + data.max_response_length"
            f" {config.data.max_response_length} = {asked} is more than the model's {length} tokens"
        )
    vocabulary = len(load_tokenizer(model.tokenizer_path or model.path))
    text = f"{model.path} has {settings.vocab_size} embeddings for {vocabulary} tokens"
    if settings.vocab_size < vocabulary:
        findings.errors.append(text)
    elif settings.vocab_size > vocabulary:
        # A large model has learned to give them almost no probability; a small one trained on the spot has not.
        notes = findings.errors if trains_on_cpu(config) else findings.notes
        notes.append(f"{text}: veRL never samples the rest, but its policy gives them probability")
    return counter


def _note_missing(path: str, reason: str, findings: Findings) -> None:
    """Note that a policy of the Hub is not here; a folder without one is an error."""
    if Path(path).exists() or path.count("/") != 1 or path.startswith((".", "/", "~")):
        findings.errors.append(f"{path} holds no usable model ({reason})")
        return
    findings.notes.append(
        f"{path} is not on this machine: lengths and vocabulary were not checked, nor whether its chat template"
        " opens the thinking in the prompt (prompt_opens_thinking) and ends turns where generation stops"
    )
