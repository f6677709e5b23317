"""Check a training run before it begins, without a GPU: data, batches, lengths, vocabulary.

`check` reads the whole configuration that `cobalt.training.configuration` composed. It notes what it cannot check (a
hub model that is not on this machine).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any

from cobalt.episode.token_count import load_tokenizer
from cobalt.problems.problem import TestSuite
from cobalt.reward.verpo import VerpoSettings
from cobalt.stage.errors import UserError
from cobalt.training.configuration import trains_on_cpu
from cobalt.training.episodes import episode_settings
from cobalt.training.policy import architecture
from cobalt.training.templates import REQUIRE_THINKING, template_errors

_COLUMNS = {"data_source": None, "prompt": None, "reward_model": "ground_truth", "extra_info": "prev_best_pass_rate"}
"""Columns that veRL and the reward function read, and the field each must have."""

_WHOLE = (
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.total_epochs",
)
"""Settings that must be whole numbers of 1 or more."""

_WHOLE_OR_NULL = (
    "trainer.total_training_steps",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "cobalt.keep_checkpoints",
)
_REMOVING = {
    "trainer.max_actor_ckpt_to_keep": None,
    "trainer.max_critic_ckpt_to_keep": None,
    "trainer.remove_previous_ckpt_in_save": False,
    "trainer.del_local_ckpt_after_load": False,
}
"""Settings by which veRL removes checkpoints before a newer one is whole, and their values that do not."""

_ABOVE_ZERO = (
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.top_p",
)
_EVERY = ("trainer.save_freq", "trainer.test_freq")
"""Settings of how many steps lie between two saves or validations."""

_TEXT = ("data.train_files", "data.val_files", "actor_rollout_ref.model.path")

_LOSS_AGG = ("mini_batch", "micro_batch")
"""What cobalt.loss_agg may be (cobalt_verl.losses.loss_agg)."""

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
    wrong = [*_kind_errors(config)]
    if wrong:
        return wrong
    parts = (_sampling_errors, _reward_errors, _loss_errors, _batch_errors, _dynamic_batch_errors, _episode_errors)
    return [error for part in parts for error in part(config)]


def check(config: Any) -> Findings:
    """Check everything that needs no GPU, but memory and disk (`cobalt.training.memory`)."""
    findings = Findings(errors=settings_errors(config))
    if any(_kind_errors(config)):
        return findings
    findings.errors += _environment_errors(config)
    rows = _rows(config, findings)
    _check_model(config, findings)
    if rows:
        steps = rows["train"] // config.data.train_batch_size
        if not steps:
            findings.errors.append(
                f"{config.data.train_files} has {rows['train']} rows, fewer than data.train_batch_size"
                f" {config.data.train_batch_size}"
            )
        most = steps * config.trainer.total_epochs
        planned = config.trainer.total_training_steps
        if steps and planned is not None and planned > most:
            findings.errors.append(
                f"trainer.total_training_steps {planned} is more than the {most} steps of trainer.total_epochs"
                f" {config.trainer.total_epochs}: the run would end before its last step is reached and saved"
            )
        findings.steps = most if planned is None else planned
        findings.notes.append(
            f"{rows['train']} training rows, {rows['val']} validation rows: {steps} steps an epoch,"
            f" {findings.steps} in all"
        )
    return findings


def _kind_errors(config: Any) -> Iterator[str]:
    """Settings of a wrong type or out of range; the other checks rely on these."""
    from omegaconf import OmegaConf

    micro = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    dynamic = OmegaConf.select(config, "actor_rollout_ref.actor.use_dynamic_bsz")
    whole, optional = (_WHOLE, (*_WHOLE_OR_NULL, micro)) if dynamic else ((*_WHOLE, micro), _WHOLE_OR_NULL)
    for key in (*whole, *optional):
        value = OmegaConf.select(config, key)
        if value is None and key in optional:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{key} is {value!r}: it must be a whole number of 1 or more"
    for key, harmless in _REMOVING.items():
        if OmegaConf.select(config, key, default=harmless) != harmless:
            yield f"{key} removes a checkpoint before a newer one is whole: leave it, and give --keep"
    for key in _ABOVE_ZERO:
        value = OmegaConf.select(config, key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < inf:
            yield f"{key} is {value!r}: it must be a number above 0"
    for key in _EVERY:
        value = OmegaConf.select(config, key)
        if not isinstance(value, int) or isinstance(value, bool):
            yield f"{key} is {value!r}: it must be a whole number; -1 is never"
    for key in _TEXT:
        value = OmegaConf.select(config, key)
        if not isinstance(value, str):
            yield f"{key} is {value!r}: it must be one path"
    if not OmegaConf.is_dict(config.data.apply_chat_template_kwargs):
        yield f"data.apply_chat_template_kwargs is {config.data.apply_chat_template_kwargs!r}: it must be a mapping"


def _environment_errors(config: Any) -> Iterator[str]:
    """Variables of the shell that break a run on GPUs.

    veRL switches expandable segments of the actor's memory on and off by itself. Set for all processes they reach the
    engine, whose sleep mode and whose transfer of weights cannot use such memory.
    """
    if trains_on_cpu(config):
        return
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if re.search(r"expandable_segments\s*:\s*true", os.environ.get(name, ""), re.IGNORECASE):
            yield f"{name}={os.environ[name]}: the engine cannot sleep with expandable_segments, so unset the variable"


def _sampling_errors(config: Any) -> Iterator[str]:
    rollout = config.actor_rollout_ref.rollout
    if rollout.top_p != 1 or rollout.top_k != -1:
        yield (
            f"training samples with top_p {rollout.top_p} and top_k {rollout.top_k}: the importance ratio is biased"
            " unless actor_rollout_ref.rollout.top_p=1 and top_k=-1"
        )
    if config.algorithm.adv_estimator in _BY_COMPARISON and rollout.n < 2:
        name = _BY_COMPARISON[config.algorithm.adv_estimator]
        yield f"actor_rollout_ref.rollout.n is {rollout.n}: {name} compares at least 2 samples of a prompt"
    estimator = str(config.algorithm.adv_estimator)
    if estimator in _NOT_TRAINED:
        yield (
            f"algorithm.adv_estimator={estimator} needs {_NOT_TRAINED[estimator]}: choose an estimator by --estimator"
            f" ({' or '.join(_BY_COMPARISON)}), or another of veRL's, such as rloo"
        )
    if config.critic.enable:
        yield "critic.enable=true needs a critic, which this project does not train: leave it"
    if config.data.truncation not in ("error", "left"):
        yield f"data.truncation is {config.data.truncation!r}, which cuts off the generation prompt: use error"
    if config.algorithm.filter_groups.enable:
        yield "algorithm.filter_groups is not offered by this project's replay buffer: leave it off"
    if config.trainer.v1.trainer_mode != "sync" or not config.trainer.use_v1:
        yield "only veRL's synchronous trainer is supported: leave trainer.use_v1 and trainer.v1.trainer_mode alone"


def _reward_errors(config: Any) -> Iterator[str]:
    from omegaconf import OmegaConf

    reward = config.reward
    of_the_function = (
        reward.custom_reward_function.path
        and reward.reward_manager.name == "naive"
        and reward.reward_manager.source == "register"
        and not reward.reward_model.enable
    )
    if not reward.num_workers and not of_the_function:
        yield (
            "reward.num_workers=0 computes rewards by reward.custom_reward_function alone: set it above 0 for another"
            " reward.reward_manager or for a reward.reward_model"
        )
    required = OmegaConf.select(config, REQUIRE_THINKING, default="auto")
    if not isinstance(required, bool) and required != "auto":
        yield f"{REQUIRE_THINKING} is {required!r}: it must be auto, true or false"


def _loss_errors(config: Any) -> Iterator[str]:
    chosen, mode = config.cobalt.loss_agg, config.actor_rollout_ref.actor.loss_agg_mode
    if chosen not in _LOSS_AGG:
        yield f"cobalt.loss_agg is {chosen!r}: it must be one of {', '.join(_LOSS_AGG)}"
    elif chosen == "micro_batch" and mode != "token-mean":
        yield (
            f"cobalt.loss_agg=micro_batch averages over tokens, but actor_rollout_ref.actor.loss_agg_mode is {mode!r}:"
            " use token-mean, or cobalt.loss_agg=mini_batch"
        )


def _episode_errors(config: Any) -> Iterator[str]:
    """Settings of several turns, and of the estimator that needs the outcomes of their tests."""
    from omegaconf import OmegaConf

    try:
        episodes = episode_settings(config)
    except UserError as error:
        yield str(error)
        return
    loop = str(config.actor_rollout_ref.rollout.agent.default_agent_loop)
    if episodes is None and loop.endswith("multi_turn"):
        yield f"the agent loop {loop} needs cobalt.multi_turn: leave it as the rollout sets it"
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
    section = OmegaConf.select(config, "algorithm.verpo")
    if not OmegaConf.is_dict(section):
        yield "the estimator verpo needs its constants in algorithm.verpo: choose it by --estimator verpo"
        return
    constants: Any = OmegaConf.to_container(section, resolve=True)
    unknown = sorted(constants.keys() - {field.name for field in fields(VerpoSettings)})
    if unknown:
        yield f"algorithm.verpo has no constant {unknown[0]!r}"
        return
    try:
        VerpoSettings(**constants)
    except UserError as error:
        yield str(error)


def _batch_errors(config: Any) -> Iterator[str]:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    batch, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    if batch % mini:
        yield f"data.train_batch_size {batch} is not a multiple of actor.ppo_mini_batch_size {mini}"
    parallel = rollout.tensor_model_parallel_size
    if gpus % parallel:
        yield f"{gpus} GPUs are not a multiple of rollout.tensor_model_parallel_size {parallel}"
    if mini * rollout.n % gpus:
        yield f"actor.ppo_mini_batch_size {mini} x rollout.n {rollout.n} cannot be shared by {gpus} GPUs"
    elif not actor.use_dynamic_bsz and mini * rollout.n // gpus % actor.ppo_micro_batch_size_per_gpu:
        yield (
            f"{mini * rollout.n // gpus} samples of a mini-batch on each GPU are not a multiple of"
            f" actor.ppo_micro_batch_size_per_gpu {actor.ppo_micro_batch_size_per_gpu}"
        )
    if batch * rollout.n % gpus:
        yield f"data.train_batch_size {batch} x rollout.n {rollout.n} cannot be shared by {gpus} GPUs"
        return
    for name in ("rollout", "ref"):
        part = config.actor_rollout_ref[name]
        micro = part.log_prob_micro_batch_size_per_gpu
        if not part.log_prob_use_dynamic_bsz and micro and batch * rollout.n // gpus % micro:
            yield (
                f"{batch * rollout.n // gpus} samples of a batch on each GPU are not a multiple of"
                f" {name}.log_prob_micro_batch_size_per_gpu {micro}"
            )


def _dynamic_batch_errors(config: Any) -> Iterator[str]:
    """Micro-batches with a limit of tokens in place of a number of samples (`use_dynamic_bsz`)."""
    policy = config.actor_rollout_ref
    if policy.actor.use_dynamic_bsz != policy.rollout.log_prob_use_dynamic_bsz:
        yield (
            f"actor.use_dynamic_bsz is {policy.actor.use_dynamic_bsz}, rollout.log_prob_use_dynamic_bsz"
            f" {policy.rollout.log_prob_use_dynamic_bsz}: veRL needs both alike, so leave the latter alone"
        )
    if policy.actor.use_dynamic_bsz and config.cobalt.loss_agg == "micro_batch":
        yield (
            "cobalt.loss_agg=micro_batch weighs a token by its micro-batch, and actor_rollout_ref.actor.use_dynamic_bsz"
            " makes micro-batches by length: set cobalt.loss_agg=mini_batch, or use_dynamic_bsz=false"
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    parallel = policy.actor.ulysses_sequence_parallel_size
    for name, dynamic, limit in (
        ("actor.ppo", policy.actor.use_dynamic_bsz, policy.actor.ppo_max_token_len_per_gpu),
        ("rollout.log_prob", policy.rollout.log_prob_use_dynamic_bsz, policy.rollout.log_prob_max_token_len_per_gpu),
        ("ref.log_prob", policy.ref.log_prob_use_dynamic_bsz, policy.ref.log_prob_max_token_len_per_gpu),
    ):
        if dynamic and limit * parallel < longest:
            yield (
                f"actor_rollout_ref.{name}_max_token_len_per_gpu {limit} is less than one sample of"
                f" data.max_prompt_length + data.max_response_length = {longest} tokens"
            )


def _rows(config: Any, findings: Findings) -> dict[str, int] | None:
    """Rows of both files, once their columns are right and their prompts are measured."""
    import pyarrow

    counter = _token_counter(config, findings)
    if counter is not None:
        findings.errors += template_errors(config, counter)
    rows = {}
    for split in ("train", "val"):
        path = Path(config.data[f"{split}_files"])
        try:
            rows[split] = _check_file(path, config, counter, findings)
        except UserError as error:
            findings.errors.append(str(error))
        except (OSError, pyarrow.ArrowException, UnicodeError) as error:  # what a damaged file raises
            findings.errors.append(f"{path} is not a parquet file: {' '.join(str(error).split())}")
    return rows if len(rows) == 2 else None


def _check_file(path: Path, config: Any, counter: Any, findings: Findings) -> int:
    import pyarrow.types
    from pyarrow import parquet

    longest = config.data.max_prompt_length
    if not path.is_file():
        raise UserError(f"there is no {path}: make it with preproc/verl_preproc_*.py")
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        for column, inner in _COLUMNS.items():
            if column not in schema.names:
                raise UserError(f"{path} has no column {column!r}: make it with preproc/verl_preproc_*.py")
            kind = schema.field(column).type
            if inner and not (pyarrow.types.is_struct(kind) and any(f.name == inner for f in kind)):
                raise UserError(f"{path}: column {column!r} has no field {inner!r}")
        if config.cobalt.get("multi_turn") and not any(f.name == "episode" for f in schema.field("extra_info").type):
            raise UserError(
                f"{path}: column 'extra_info' has no field 'episode', and the rollout has several turns: make the rows"
                " with preproc/verl_preproc_single_turn.py --episodes"
            )
        if not pyarrow.types.is_list(schema.field("prompt").type):
            raise UserError(f"{path}: column 'prompt' holds no lists of messages")
        if counter is not None:
            names: list[str] = []
            for batch in file.iter_batches(1000, columns=["prompt", "reward_model", "extra_info"]):
                _check_tests(path, batch)
                lengths = counter.count(batch.column("prompt").to_pylist())
                for length, extra in zip(lengths, batch.column("extra_info").to_pylist(), strict=True):
                    if length > longest:
                        names.append(f"{extra.get('id', extra.get('index'))} ({length})")
            if names:
                findings.errors.append(
                    f"{path}: {len(names)} prompts are longer than data.max_prompt_length {longest}:"
                    f" {', '.join(names[:_NAMED])}{', ...' if len(names) > _NAMED else ''}"
                )
        count: int = file.metadata.num_rows
    if not count:
        raise UserError(f"{path} has no rows")
    return count


def _check_tests(path: Path, batch: Any) -> None:
    """Raise if the tests of a row, in `reward_model.ground_truth`, cannot be read as the reward reads them."""
    extras = batch.column("extra_info").to_pylist()
    for row, extra in zip(batch.column("reward_model").to_pylist(), extras, strict=True):
        try:
            TestSuite.parse((row or {}).get("ground_truth"))
        except UserError as error:
            name = (extra or {}).get("id", (extra or {}).get("index"))
            raise UserError(f"{path}: the tests of row {name} cannot be read: {error}") from None


def _token_counter(config: Any, findings: Findings) -> Any:
    from omegaconf import OmegaConf

    from cobalt.episode.token_count import NoChatTemplate, PromptTokenCounter

    model = config.actor_rollout_ref.model
    arguments: Any = OmegaConf.to_container(config.data.apply_chat_template_kwargs)
    try:
        return PromptTokenCounter(model.tokenizer_path or model.path, arguments)
    except NoChatTemplate as error:  # of a folder, and of a model of the Hub that is on this machine
        findings.errors.append(str(error))
        return None
    except UserError as error:
        _missing(model.path, str(error), findings)
        return None


def _check_model(config: Any, findings: Findings) -> None:
    model = config.actor_rollout_ref.model
    try:
        settings = architecture(model.path).get_text_config()
        vocabulary = len(load_tokenizer(model.tokenizer_path or model.path))
    except UserError as error:
        _missing(model.path, str(error), findings)
        return
    asked = config.data.max_prompt_length + config.data.max_response_length
    positions = getattr(settings, "max_position_embeddings", None)  # some architectures have no limit
    length = min(positions or 2**62, config.actor_rollout_ref.rollout.max_model_len or 2**62)
    if asked > length:
        findings.errors.append(
            f"data.max_prompt_length {config.data.max_prompt_length} + data.max_response_length"
            f" {config.data.max_response_length} = {asked} is more than the model's {length} tokens"
        )
    if settings.vocab_size < vocabulary:
        findings.errors.append(f"{model.path} has {settings.vocab_size} embeddings for {vocabulary} tokens")
    elif settings.vocab_size > vocabulary:
        text = (
            f"{model.path} has {settings.vocab_size} embeddings for {vocabulary} tokens: veRL never samples the"
            " rest, but its policy gives them probability"
        )
        # A large model has learned to give them almost no probability; a small one trained on the spot has not.
        (findings.errors if trains_on_cpu(config) else findings.notes).append(text)


def _missing(path: str, reason: str, findings: Findings) -> None:
    is_hub_name = not Path(path).exists() and path.count("/") == 1 and not path.startswith((".", "/", "~"))
    if is_hub_name:
        note = (
            f"{path} is not on this machine: lengths and vocabulary were not checked, nor whether its chat template"
            " opens the thinking in the prompt (prompt_opens_thinking) and ends turns where generation stops"
        )
        if note not in findings.notes:
            findings.notes.append(note)
    elif not any(path in error for error in findings.errors):
        findings.errors.append(f"{path} holds no usable model ({reason})")
