"""Check a training run before it begins, without a GPU: data, batches, lengths, vocabulary.

`check` refuses what would make a run wrong, would lose its checkpoints, or would stop it after its first samples. It
notes what it cannot check (a hub model that is not on this machine). What veRL refuses as a run starts is left to veRL.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cobalt.engine.model_check import cached_config, check_folder, check_vocabulary, model_path
from cobalt.episode.token_count import NoChatTemplate, PromptTokenCounter
from cobalt.problems.problem import TestSuite
from cobalt.reward.verpo import VerpoSettings
from cobalt.stage.errors import UserError, naming
from cobalt.training.configuration import planned_steps
from cobalt.training.episodes import episode_settings
from cobalt.training.machine import trains_on_cpu
from cobalt.training.policy import architecture, misfits
from cobalt.training.templates import prompt_counter, template_errors

_FIELDS = {"data_source": "data_source", "prompt": "content", "reward_model": "ground_truth"}
_FIELDS |= {"extra_info": "prev_best_pass_rate"}
"""Columns that veRL and the reward function read, and the field that each must have."""

_BY_COMPARISON = ("grpo", "verpo")
"""Estimators that compare the samples of a prompt; of several turns, trajectory by trajectory and not row by row."""


def check_settings(config: Any) -> None:
    """Check the settings alone, whatever the data and the policy are; UserError has all that is wrong."""
    if errors := [error for part in (_sample_errors, _episode_errors, _batch_errors) for error in part(config)]:
        raise UserError("; ".join(errors))


def check(config: Any) -> tuple[int, list[str]]:
    """Check everything that needs no GPU, but memory and disk (UserError).

    Returns:
        The steps of the whole run, and notes for a user.
    """
    check_settings(config)
    counter = _check_policy(config)
    train, validation = (_count_rows(config.data[f"{split}_files"], config, counter) for split in ("train", "val"))
    of_epoch = train // config.data.train_batch_size
    steps = planned_steps(config, train, of_epoch * config.trainer.total_epochs)
    policy = config.actor_rollout_ref.model.path
    notes = [] if counter else [f"{policy} is not on this machine: its lengths and chat template were not checked"]
    if config.algorithm.filter_groups.enable:
        notes.append("algorithm.filter_groups departs from the paper: batches lack groups of equal rewards")
    notes.append(f"{train} training rows, {validation} validation rows: {of_epoch} steps an epoch, {steps} in all")
    return steps, notes


def _sample_errors(config: Any) -> Iterator[str]:
    """Samples and rewards with which the gradient would be wrong."""
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
        VerpoSettings.read(config.algorithm.verpo)
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
    limits = [("actor_rollout_ref.rollout.max_model_len", rollout.max_model_len or longest)]
    for prompts, section, prefix, dynamic in (
        (mini, "actor", "ppo", actor.use_dynamic_bsz),
        (batch, "rollout", "log_prob", rollout.log_prob_use_dynamic_bsz),
        (batch, "ref", "log_prob", ref.log_prob_use_dynamic_bsz),
    ):
        key = f"{prefix}_max_token_len_per_gpu" if dynamic else f"{prefix}_micro_batch_size_per_gpu"
        size = config.actor_rollout_ref[section][key]
        if dynamic:
            limits.append((f"actor_rollout_ref.{section}.{key}", size * actor.ulysses_sequence_parallel_size))
        elif size:
            shares.append(("what a GPU has of the samples", prompts * rollout.n // gpus, f"{section}.{key}", size))
        elif section == "actor":
            yield f"actor_rollout_ref.actor.{key} is {size}: set it, or actor_rollout_ref.actor.use_dynamic_bsz=true"
    yield from (f"{key} {size} is less than one sample of {longest} tokens" for key, size in limits if size < longest)
    for name, number, key, divisor in shares:
        if number % divisor:
            yield f"{name}, {number}, is not a multiple of {key}, {divisor}"


def _count_rows(path: str, config: Any, counter: PromptTokenCounter | None) -> int:
    """The rows of a file, whose columns, tests and lengths of prompts are checked (UserError)."""
    from pyarrow import ArrowException, parquet

    longest, long = config.data.max_prompt_length, []
    several = [("extra_info", "episode")] if config.cobalt.get("multi_turn") else []  # made by --episodes
    try:
        if not Path(path).is_file():  # a pipe would be waited for
            raise UserError("there is no such file")
        with parquet.ParquetFile(path) as file:
            columns = [file.schema.column(index).path.split(".") for index in range(len(file.schema))]
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
            count: int = file.metadata.num_rows
    except (UserError, OSError, TypeError, ArrowException, UnicodeError) as error:  # no file, or a damaged one
        raise UserError(f"{path}: {' '.join(str(error).split())}: make it with preproc/verl_preproc_*.py") from None
    if long:
        some = f"{', '.join(long[:5])} (make the rows again with --max_prompt_length {longest})"
        raise UserError(f"{path}: {len(long)} prompts are longer than data.max_prompt_length {longest}: {some}")
    return count


def _check_policy(config: Any) -> PromptTokenCounter | None:
    """Check the policy's chat template, lengths and vocabulary (UserError); None if it is not on this machine."""
    model, data = config.actor_rollout_ref.model, config.data
    path, folder, own_tokenizer = model.path, model_path(model.path), model.tokenizer_path in (None, model.path)
    cached = None if folder else cached_config(path)
    if own_tokenizer and folder:
        check_folder(folder)
    elif own_tokenizer and cached:
        check_vocabulary(cached.parent)
    try:
        counter = prompt_counter(config)
        embeddings = architecture(path).get_text_config().vocab_size
    except UserError as error:
        if folder or cached or isinstance(error, NoChatTemplate):
            raise
        return None
    longest, lengths = data.max_prompt_length + data.max_response_length, "data.max_prompt_length + max_response_length"
    errors = [*template_errors(config, counter), *misfits(path, lengths, longest, on_cpu=trains_on_cpu(config))]
    vocabulary = len(counter.tokenizer)
    if embeddings < vocabulary and not own_tokenizer:
        errors.append(f"{path} has {embeddings} embeddings for the {vocabulary} tokens of {counter.model_name}")
    if errors:
        raise UserError("; ".join(errors))
    return counter
