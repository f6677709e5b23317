"""Check a training run before it begins, without a GPU: data, batches, lengths, vocabulary.

`check` reads the whole configuration that `cobalt.training.configuration` composed. It refuses what would make a run
wrong, would lose its checkpoints, or would stop it after its first samples. It notes what it cannot check (a hub model
that is not on this machine). What veRL refuses as a run starts is left to veRL.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cobalt.engine.model_check import cached_config, check_folder, check_vocabulary
from cobalt.episode.token_count import NoChatTemplate, PromptTokenCounter, load_tokenizer
from cobalt.problems.problem import TestSuite
from cobalt.reward.verpo import VerpoSettings
from cobalt.stage.errors import UserError, naming
from cobalt.training.configuration import is_small, number_errors, planned_steps, trains_on_cpu
from cobalt.training.episodes import episode_settings
from cobalt.training.policy import architecture, attention_error
from cobalt.training.templates import REQUIRE_THINKING, template_errors

_FIELDS = {
    "data_source": "data_source",
    "prompt": "content",
    "reward_model": "ground_truth",
    "extra_info": "prev_best_pass_rate",
}
"""Columns that veRL and the reward function read, and the field that each must have."""

_LOG_PROB_SIZES = ("log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu")
_COUNTS = {
    "data": ("train_batch_size", "max_prompt_length", "max_response_length"),
    "actor_rollout_ref.actor": ("ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu"),
    "actor_rollout_ref.rollout": ("n", "tensor_model_parallel_size", *_LOG_PROB_SIZES),
    "actor_rollout_ref.ref": _LOG_PROB_SIZES,
    "trainer": ("n_gpus_per_node", "nnodes", "total_epochs", "total_training_steps"),
    "cobalt": ("keep_checkpoints",),
}
"""Settings that must be whole numbers of 1 or more, by section."""

_FREQUENCIES = {"trainer.save_freq": -1, "trainer.test_freq": -1}
_MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
_ABOVE_ZERO = ("actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.rollout.temperature", "cobalt.gpu_memory_gib")

_REMOVING = (
    "trainer.max_actor_ckpt_to_keep",
    "trainer.remove_previous_ckpt_in_save",
    "trainer.del_local_ckpt_after_load",
)
"""Settings by which veRL removes checkpoints before a newer one is whole."""

_BY_COMPARISON = ("grpo", "verpo")
"""Estimators that compare the samples of a prompt; of several turns, trajectory by trajectory and not row by row."""

_NAMED = 5  # over-long prompts in a message


def check_settings(config: Any) -> None:
    """Check the settings alone, whatever the data and the policy are.

    Raises:
        UserError: some are wrong; the message has all of them.
    """
    optional = ["trainer.total_training_steps", "cobalt.keep_checkpoints", "cobalt.gpu_memory_gib"]
    optional += [f"actor_rollout_ref.{part}.{_LOG_PROB_SIZES[0]}" for part in ("rollout", "ref")]
    optional += [_MICRO] if config.actor_rollout_ref.actor.use_dynamic_bsz else []
    wrong = list(number_errors(config, _COUNTS, _FREQUENCIES, optional, _ABOVE_ZERO))
    parts = (_sampling_errors, _trainer_errors, _loss_errors, _episode_errors, _batch_errors)
    _raise(wrong or [error for part in parts for error in part(config)])


def check(config: Any) -> tuple[int, list[str]]:
    """Check everything that needs no GPU, but memory and disk (`cobalt.training.memory`).

    Returns:
        The steps of the whole run, and notes for a user.

    Raises:
        UserError: something is wrong; the message has all that was found.
    """
    check_settings(config)
    errors: list[str] = []
    notes: list[str] = []
    counter = _check_policy(config, errors, notes)
    train, validation = (_rows(config.data[f"{split}_files"], config, counter, errors) for split in ("train", "val"))
    _raise(errors)
    of_epoch = train // config.data.train_batch_size
    steps = planned_steps(config, train, of_epoch * config.trainer.total_epochs)
    if config.algorithm.filter_groups.enable:
        notes.append("algorithm.filter_groups departs from the paper: batches lack groups of equal rewards")
    notes.append(f"{train} training rows, {validation} validation rows: {of_epoch} steps an epoch, {steps} in all")
    return steps, notes


def _raise(errors: Sequence[str]) -> None:
    if errors:
        raise UserError("; ".join(errors))


def _sampling_errors(config: Any) -> Iterator[str]:
    """Prompts and samples with which the gradient would be wrong."""
    from omegaconf import OmegaConf

    rollout, estimator = config.actor_rollout_ref.rollout, str(config.algorithm.adv_estimator)
    if rollout.top_p != 1 or rollout.top_k != -1:
        yield (
            f"training samples with top_p {rollout.top_p} and top_k {rollout.top_k}: the importance ratio is biased"
            " unless actor_rollout_ref.rollout.top_p=1 and top_k=-1"
        )
    if estimator in _BY_COMPARISON and rollout.n < 2:
        yield f"actor_rollout_ref.rollout.n is {rollout.n}: {estimator} compares at least 2 samples of a prompt"
    if config.data.truncation not in ("error", "left"):
        yield f"data.truncation is {config.data.truncation!r}, which cuts off the generation prompt: use error"
    if not OmegaConf.is_dict(config.data.apply_chat_template_kwargs):
        yield f"data.apply_chat_template_kwargs is {config.data.apply_chat_template_kwargs!r}: it must be a mapping"


def _trainer_errors(config: Any) -> Iterator[str]:
    """Another trainer of veRL, checkpoints that it would lose, and memory that its engine cannot use."""
    from omegaconf import OmegaConf

    if config.trainer.v1.trainer_mode != "sync" or not config.trainer.use_v1:
        yield "only veRL's synchronous trainer is supported: leave trainer.use_v1 and trainer.v1.trainer_mode alone"
    for key in _REMOVING:
        if OmegaConf.select(config, key):
            yield f"{key} removes a checkpoint before a newer one is whole: leave it, and give --keep"
    # veRL itself switches this on and off for the actor; for all processes it would reach the engine's sleep mode.
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        value = os.environ.get(name, "")
        if not trains_on_cpu(config) and re.search(r"expandable_segments\s*:\s*true", value, re.IGNORECASE):
            yield f"{name}={value}: the engine cannot sleep with expandable_segments, so unset the variable"


def _loss_errors(config: Any) -> Iterator[str]:
    """Settings of the reward and of the loss's mean."""
    from omegaconf import OmegaConf

    reward, actor = config.reward, config.actor_rollout_ref.actor
    by_function = reward.custom_reward_function.path and reward.reward_manager.name == "naive"
    if not reward.num_workers and (not by_function or reward.reward_model.enable):
        yield "reward.num_workers=0 computes rewards by reward.custom_reward_function alone: set it above 0"
    required = OmegaConf.select(config, REQUIRE_THINKING, default="auto")
    if required not in (True, False, "auto"):
        yield f"{REQUIRE_THINKING} is {required!r}: it must be auto, true or false"
    if config.cobalt.loss_agg not in ("mini_batch", "micro_batch"):
        yield f"cobalt.loss_agg is {config.cobalt.loss_agg!r}: it must be mini_batch or micro_batch"
    if config.cobalt.loss_agg == "micro_batch" and (actor.loss_agg_mode != "token-mean" or actor.use_dynamic_bsz):
        yield (
            "cobalt.loss_agg=micro_batch averages over the tokens of micro-batches of one size, and"
            f" actor_rollout_ref.actor.loss_agg_mode is {actor.loss_agg_mode!r}, use_dynamic_bsz"
            f" {actor.use_dynamic_bsz}: set cobalt.loss_agg=mini_batch"
        )


def _episode_errors(config: Any) -> Iterator[str]:
    """Settings of several turns, and of the estimator that needs the outcomes of their tests."""
    try:
        episodes = episode_settings(config)
    except UserError as error:
        yield str(error)
        return
    estimator = config.algorithm.adv_estimator
    if episodes is not None and (estimator not in _BY_COMPARISON or config.algorithm.filter_groups.enable):
        yield (
            f"algorithm.adv_estimator {estimator!r} or algorithm.filter_groups compares rows, of which a trajectory of"
            f" several turns may have several: use one of {', '.join(_BY_COMPARISON)}, without filter_groups"
        )
    if estimator != "verpo":
        return
    if episodes is None or not episodes.all_tests_every_turn:
        yield (
            "the estimator verpo needs the outcomes of all tests at every turn: use the rollout multi_turn (for one"
            " turn with cobalt.multi_turn.turns=1) and cobalt.judge_every_turn=true"
        )
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
    for name, samples, section, prefix, dynamic in (
        ("a mini-batch", mini, "actor", "ppo", actor.use_dynamic_bsz),
        ("a batch", batch, "rollout", "log_prob", rollout.log_prob_use_dynamic_bsz),
        ("a batch", batch, "ref", "log_prob", ref.log_prob_use_dynamic_bsz),
    ):
        key = f"{prefix}_max_token_len_per_gpu" if dynamic else f"{prefix}_micro_batch_size_per_gpu"
        size = config.actor_rollout_ref[section][key]
        if dynamic and size * actor.ulysses_sequence_parallel_size < longest:
            yield (
                f"actor_rollout_ref.{section}.{key} {size} is less than one sample of data.max_prompt_length +"
                f" data.max_response_length = {longest} tokens"
            )
        if size and not dynamic:
            share = samples * rollout.n // gpus
            shares.append((f"what a GPU has of the samples of {name}", share, f"{section}.{key}", size))
    for name, number, key, divisor in shares:
        if number % divisor:
            yield f"{name}, {number}, is not a multiple of {key}, {divisor}"


def _rows(path: str, config: Any, counter: PromptTokenCounter | None, errors: list[str]) -> int:
    """The rows of a file, whose columns, tests and lengths of prompts are checked."""
    import pyarrow

    try:
        return _check_file(path, config, counter, errors)
    except UserError as error:
        errors.append(f"{path}: {error}: make it with preproc/verl_preproc_*.py")
    except (OSError, TypeError, pyarrow.ArrowException, UnicodeError) as error:  # what a damaged file raises
        errors.append(f"{path} is not a parquet file: {' '.join(str(error).split())}")
    return 0


def _check_file(path: str, config: Any, counter: PromptTokenCounter | None, errors: list[str]) -> int:
    from pyarrow import parquet

    longest = config.data.max_prompt_length
    if not Path(path).is_file():
        raise UserError("there is no such file")
    with parquet.ParquetFile(path) as file:
        columns = [file.schema.column(index).path.split(".") for index in range(len(file.schema))]
        several = [("extra_info", "episode")] if config.cobalt.get("multi_turn") else []  # made by --episodes
        for column, inner in (*_FIELDS.items(), *several):
            if not any(names[0] == column and inner in names for names in columns):
                raise UserError(f"it has no column {column!r} with a field {inner!r}")
        long: list[str] = []
        for batch in file.iter_batches(1000, columns=["prompt", "reward_model", "extra_info"]):
            rows = batch.to_pylist()
            lengths = counter.count([row["prompt"] for row in rows]) if counter else [0] * len(rows)
            for row, length in zip(rows, lengths, strict=True):
                extra = row["extra_info"] or {}
                name = extra.get("id", extra.get("index"))
                with naming(f"the tests of row {name}"):
                    TestSuite.parse((row["reward_model"] or {}).get("ground_truth"))
                if length > longest:
                    long.append(f"{name} ({length})")
        if long:
            errors.append(
                f"{path}: {len(long)} prompts are longer than data.max_prompt_length {longest}:"
                f" {', '.join(long[:_NAMED])}{', ...' if len(long) > _NAMED else ''}"
            )
        return int(file.metadata.num_rows)


def _check_policy(config: Any, errors: list[str], notes: list[str]) -> PromptTokenCounter | None:
    """Check the policy's chat template, length and vocabulary; what counts its prompts, None if it is not here."""
    from omegaconf import OmegaConf

    path, data = config.actor_rollout_ref.model.path, config.data
    tokenizer = config.actor_rollout_ref.model.tokenizer_path or path
    arguments: Any = OmegaConf.to_container(data.apply_chat_template_kwargs)
    try:
        if tokenizer == path and Path(path).is_dir():
            check_folder(Path(path))
        elif tokenizer == path and (cached := cached_config(path)):
            check_vocabulary(cached.parent)
    except UserError as error:
        errors.append(str(error))
        return None
    try:
        counter = PromptTokenCounter(tokenizer, arguments)
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
    if trains_on_cpu(config) and (unlike := attention_error(path, asked)):
        errors.append(unlike)
    positions = getattr(settings, "max_position_embeddings", None)  # some architectures have no limit
    length = min(positions or 2**62, config.actor_rollout_ref.rollout.max_model_len or 2**62)
    if asked > length:
        errors.append(
            f"data.max_prompt_length {data.max_prompt_length} + data.max_response_length {data.max_response_length} ="
            f" {asked} is more than the model's {length} tokens: set smaller ones"
        )
    vocabulary, embeddings = len(load_tokenizer(tokenizer)), settings.vocab_size
    if embeddings > vocabulary:
        # A large model has learned to give spare tokens almost no probability; a small one trained on the spot has not.
        (errors if is_small(path) else notes).append(
            f"{path} has {embeddings} embeddings for {vocabulary} tokens, and its policy can choose all of them"
        )
    return counter
