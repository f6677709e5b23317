"""Check a training run before it begins, without a GPU: data, batches, lengths, vocabulary.

`check` refuses what would make a run wrong, would lose its checkpoints, or would stop it after its first samples. It
notes what it cannot check (a hub model that is not on this machine). What veRL refuses as a run starts is left to veRL.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from cobalt.engine.model_check import cached_config, check_folder, check_vocabulary
from cobalt.episode.token_count import NoChatTemplate, PromptTokenCounter
from cobalt.problems.problem import TestSuite
from cobalt.reward.verpo import VerpoSettings
from cobalt.stage.errors import UserError, naming
from cobalt.training.configuration import (
    AboveZero,
    Count,
    CountOrZero,
    Frequency,
    is_small,
    planned_steps,
    trains_on_cpu,
    type_errors,
)
from cobalt.training.episodes import episode_settings
from cobalt.training.policy import architecture, attention_error
from cobalt.training.templates import REQUIRE_THINKING, prompt_counter, template_errors

_FIELDS = {"data_source": "data_source", "prompt": "content", "reward_model": "ground_truth"}
_FIELDS |= {"extra_info": "prev_best_pass_rate"}
"""Columns that veRL and the reward function read, and the field that each must have."""

_BY_COMPARISON = ("grpo", "verpo")
"""Estimators that compare the samples of a prompt; of several turns, trajectory by trajectory and not row by row."""


def check_settings(config: Any) -> None:
    """Check the settings alone, whatever the data and the policy are; UserError has all that is wrong."""
    parts = (_sample_errors, _episode_errors, _batch_errors)
    if errors := list(_type_errors(config)) or [error for part in parts for error in part(config)]:
        raise UserError("; ".join(errors))


def check(config: Any) -> tuple[int, list[str]]:
    """Check everything that needs no GPU, but memory and disk; UserError has all that is wrong.

    Returns:
        The steps of the whole run, and notes for a user.
    """
    check_settings(config)
    errors: list[str] = []
    notes: list[str] = []
    counter = _check_policy(config, errors, notes)
    train, validation = (_rows(config.data[f"{split}_files"], config, counter, errors) for split in ("train", "val"))
    if errors:
        raise UserError("; ".join(errors))
    of_epoch = train // config.data.train_batch_size
    steps = planned_steps(config, train, of_epoch * config.trainer.total_epochs)
    if config.algorithm.filter_groups.enable:
        notes.append("algorithm.filter_groups departs from the paper: batches lack groups of equal rewards")
    notes.append(f"{train} training rows, {validation} validation rows: {of_epoch} steps an epoch, {steps} in all")
    return steps, notes


def _type_errors(config: Any) -> Iterator[str]:
    """Settings that are no numbers in their range, and choices of veRL with which a run would be wrong."""
    errors = partial(type_errors, config)
    actor, rollout, ref = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
    yield from errors(
        Count, [f"data.{key}" for key in ("train_batch_size", "max_prompt_length", "max_response_length")]
    )
    yield from errors(Count, [f"trainer.{key}" for key in ("n_gpus_per_node", "nnodes", "total_epochs")])
    yield from errors(Count, [f"{actor}.ppo_mini_batch_size", f"{actor}.ppo_max_token_len_per_gpu"])
    yield from errors(Count, [f"{rollout}.n", f"{rollout}.tensor_model_parallel_size"])
    yield from errors(Count, [f"{part}.log_prob_max_token_len_per_gpu" for part in (rollout, ref)])
    yield from errors(Count | None, [f"{part}.log_prob_micro_batch_size_per_gpu" for part in (rollout, ref)])
    by_tokens = config.actor_rollout_ref.actor.use_dynamic_bsz
    yield from errors(Count | None if by_tokens else Count, [f"{actor}.ppo_micro_batch_size_per_gpu"])
    yield from errors(Count | None, ["trainer.total_training_steps", "cobalt.keep_checkpoints"])
    yield from errors(Frequency, ["trainer.save_freq", "trainer.test_freq"])
    yield from errors(CountOrZero, ["cobalt.rollout_every"])
    yield from errors(AboveZero, [f"{actor}.optim.lr", f"{rollout}.temperature"])
    yield from errors(AboveZero | None, ["cobalt.gpu_memory_gib"])
    yield from errors(dict, ["data.apply_chat_template_kwargs"])
    yield from errors(Literal["mini_batch", "micro_batch"], ["cobalt.loss_agg"])
    yield from errors(Literal["auto", True, False, None], [REQUIRE_THINKING])  # None: another reward function
    yield from errors(Literal["error", "left"], ["data.truncation"], "the rest cuts off the generation prompt")
    yield from errors(Literal[1], [f"{rollout}.top_p"], "the importance ratio would be biased")
    yield from errors(Literal[-1], [f"{rollout}.top_k"], "the importance ratio would be biased")
    yield from errors(Literal[True], ["trainer.use_v1"], "only veRL's synchronous trainer is supported")
    yield from errors(Literal["sync"], ["trainer.v1.trainer_mode"], "only veRL's synchronous trainer is supported")
    for key in ("max_actor_ckpt_to_keep", "remove_previous_ckpt_in_save", "del_local_ckpt_after_load"):
        reason = "it removes a checkpoint before a newer one is whole (--keep does not)"
        yield from errors(Literal[None, False], [f"trainer.{key}"], reason)


def _sample_errors(config: Any) -> Iterator[str]:
    """Samples and rewards with which the gradient would be wrong, and memory that veRL's engine cannot use."""
    actor, rollout, reward = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.reward
    estimator = config.algorithm.adv_estimator
    if estimator in _BY_COMPARISON and rollout.n < 2:
        yield f"actor_rollout_ref.rollout.n is {rollout.n}: {estimator} compares at least 2 samples of a prompt"
    by_function = reward.custom_reward_function.path and reward.reward_manager.name == "naive"
    if not reward.num_workers and (not by_function or reward.reward_model.enable):
        yield "reward.num_workers=0 computes rewards by reward.custom_reward_function alone: set it above 0"
    if config.cobalt.loss_agg == "micro_batch" and (actor.loss_agg_mode != "token-mean" or actor.use_dynamic_bsz):
        other = f"loss_agg_mode is {actor.loss_agg_mode!r}, use_dynamic_bsz {actor.use_dynamic_bsz}"
        yield f"cobalt.loss_agg=micro_batch is a mean over equal micro-batches, and {other}: set it to mini_batch"
    # veRL itself switches this on and off for the actor; for all processes it would reach the engine's sleep mode.
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        value = os.environ.get(name, "")
        if not trains_on_cpu(config) and re.search(r"expandable_segments\s*:\s*true", value, re.IGNORECASE):
            yield f"{name}={value}: the engine cannot sleep with expandable_segments, so unset the variable"


def _episode_errors(config: Any) -> Iterator[str]:
    """Settings of several turns, and of the estimator that needs the outcomes of their tests."""
    episodes, estimator = episode_settings(config), config.algorithm.adv_estimator
    if episodes is not None and (estimator not in _BY_COMPARISON or config.algorithm.filter_groups.enable):
        rows = f"algorithm.adv_estimator {estimator!r} or algorithm.filter_groups compares rows, and not trajectories"
        yield f"{rows} of several turns: use one of {', '.join(_BY_COMPARISON)}, without filter_groups"
    if estimator != "verpo":
        return
    if episodes is None or not episodes.all_tests_every_turn:
        yield "verpo needs all tests at every turn: use the rollout multi_turn and cobalt.judge_every_turn=true"
    if config.algorithm.use_kl_in_reward:
        yield "the estimator verpo has rewards of its own: leave algorithm.use_kl_in_reward off"
    try:
        VerpoSettings(**config.algorithm.verpo)
    except (AttributeError, TypeError, UserError) as error:  # the section is missing, or has another constant
        yield f"algorithm.verpo, which --estimator verpo sets, has wrong constants: {error}"


def _batch_errors(config: Any) -> Iterator[str]:
    """Batches that cannot be shared by GPUs or cut into micro-batches; limits of tokens that one sample may exceed."""
    actor, rollout, ref = (config.actor_rollout_ref[part] for part in ("actor", "rollout", "ref"))
    gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    batch, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    longest = config.data.max_prompt_length + config.data.max_response_length
    shares = [
        ("data.train_batch_size", batch, "actor.ppo_mini_batch_size", mini),
        ("the number of GPUs", gpus, "rollout.tensor_model_parallel_size", rollout.tensor_model_parallel_size),
        ("actor.ppo_mini_batch_size x rollout.n", mini * rollout.n, "the number of GPUs", gpus),
    ]
    for prompts, section, prefix, dynamic in (
        (mini, "actor", "ppo", actor.use_dynamic_bsz),
        (batch, "rollout", "log_prob", rollout.log_prob_use_dynamic_bsz),
        (batch, "ref", "log_prob", ref.log_prob_use_dynamic_bsz),
    ):
        key = f"{prefix}_max_token_len_per_gpu" if dynamic else f"{prefix}_micro_batch_size_per_gpu"
        size = config.actor_rollout_ref[section][key]
        if dynamic and size * actor.ulysses_sequence_parallel_size < longest:
            yield f"actor_rollout_ref.{section}.{key} {size} is less than one sample of {longest} tokens"
        if size and not dynamic:
            shares.append(("what a GPU has of the samples", prompts * rollout.n // gpus, f"{section}.{key}", size))
    for name, number, key, divisor in shares:
        if number % divisor:
            yield f"{name}, {number}, is not a multiple of {key}, {divisor}"


def _rows(path: str, config: Any, counter: PromptTokenCounter | None, errors: list[str]) -> int:
    """The rows of a file, whose columns, tests and lengths of prompts are checked."""
    from pyarrow import ArrowException, parquet

    longest, long, count = config.data.max_prompt_length, [], 0
    try:
        if not Path(path).is_file():
            raise UserError("there is no such file")
        with parquet.ParquetFile(path) as file:
            columns = [file.schema.column(index).path.split(".") for index in range(len(file.schema))]
            several = [("extra_info", "episode")] if config.cobalt.get("multi_turn") else []  # made by --episodes
            for column, inner in (*_FIELDS.items(), *several):
                if not any(names[0] == column and inner in names for names in columns):
                    raise UserError(f"it has no column {column!r} with a field {inner!r}")
            for batch in file.iter_batches(1000, columns=["prompt", "reward_model", "extra_info"]):
                rows = batch.to_pylist()
                lengths = counter.count([row["prompt"] for row in rows]) if counter else [0] * len(rows)
                for row, length in zip(rows, lengths, strict=True):
                    extra = row["extra_info"] or {}
                    name = extra.get("id", extra.get("index"))
                    with naming(f"the tests of row {name}"):
                        TestSuite.parse((row["reward_model"] or {}).get("ground_truth"))
                    long += [f"{name} ({length})"] if length > longest else []
                count += len(rows)
    except UserError as error:
        errors.append(f"{path}: {error}: make it with preproc/verl_preproc_*.py")
    except (OSError, TypeError, ArrowException, UnicodeError) as error:  # what a damaged file raises
        errors.append(f"{path} is not a parquet file: {' '.join(str(error).split())}")
    if long:
        some = ", ".join(long[:5]) + (", ..." if len(long) > 5 else "")
        errors.append(f"{path}: {len(long)} prompts are longer than data.max_prompt_length {longest}: {some}")
    return count


def _check_policy(config: Any, errors: list[str], notes: list[str]) -> PromptTokenCounter | None:
    """Check the policy's chat template, length and vocabulary; what counts its prompts, None if it is not here."""
    path, data = config.actor_rollout_ref.model.path, config.data
    try:
        if config.actor_rollout_ref.model.tokenizer_path in (None, path):
            if Path(path).is_dir():
                check_folder(Path(path))
            elif cached := cached_config(path):
                check_vocabulary(cached.parent)
    except UserError as error:
        errors.append(str(error))
        return None
    try:
        counter = prompt_counter(config)
        settings = architecture(path).get_text_config()
    except NoChatTemplate as error:  # of a model of the Hub that is on this machine
        errors.append(str(error))
        return None
    except UserError as error:
        if Path(path).exists() or path.count("/") != 1 or path.startswith((".", "/", "~")):
            errors.append(f"{path} holds no usable model ({error})")
        else:
            notes.append(f"{path} is not on this machine: its lengths, vocabulary and chat template were not checked")
        return None
    errors += template_errors(config, counter)
    asked = data.max_prompt_length + data.max_response_length
    if trains_on_cpu(config) and (wrong := attention_error(path, asked)):
        errors.append(wrong)
    limits = (getattr(settings, "max_position_embeddings", None), config.actor_rollout_ref.rollout.max_model_len)
    length = min(limit or 2**62 for limit in limits)  # some architectures have none
    if asked > length:
        lengths = f"{data.max_prompt_length} + data.max_response_length {data.max_response_length} = {asked}"
        errors.append(f"data.max_prompt_length {lengths} is more than the model's {length} tokens: set smaller ones")
    vocabulary, embeddings = len(counter.tokenizer), settings.vocab_size
    if embeddings < vocabulary and config.actor_rollout_ref.model.tokenizer_path not in (None, path):
        errors.append(f"{path} has {embeddings} embeddings for the {vocabulary} tokens of {counter.model_name}")
    if embeddings > vocabulary:
        # A large model has learned to give spare tokens almost no probability; a small one trained on the spot has not.
        (errors if is_small(path) else notes).append(
            f"{path} has {embeddings} embeddings for {vocabulary} tokens, and its policy can choose all of them"
        )
    return counter
