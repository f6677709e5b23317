"""The whole configuration of a run: veRL's defaults, four choices of `cobalt_verl/config`, paths, the user's overrides.

The choices are data, rollout, estimator with its loss, and scale, each a file of its own. This module only composes;
`cobalt.training.checks` checks the result. veRL is not imported: its configuration files are found where it is
installed.
"""

import difflib
import importlib.util
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.stage.environment import SHORT_WAIT, passed_on
from cobalt.stage.errors import UserError
from cobalt.training.policy import policy_path


def _additions() -> Path:
    """The folder of the package `cobalt_verl`: the installed one, or the checkout's where it is not installed."""
    spec = importlib.util.find_spec("cobalt_verl")
    if spec is None or spec.origin is None:
        return Path(__file__).resolve().parents[2] / "verl" / "cobalt_verl"
    return Path(spec.origin).parent


VERL_ADDITIONS = _additions()
"""The folder of what this project adds to veRL, with the configurations of training."""

_REWARD_FILE = "code_reward_func_think.py"
_UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'")


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
    scale: Annotated[str, tyro.conf.arg(aliases=["--profile"])] = "pocket"
    """pocket: a model of a few million parameters on a CPU. paper: the paper's scale on 4 GPUs. fast: the same with
    micro-batches by tokens and another mean of the loss. gpu-smoke: a few small steps on one GPU, to see that all
    runs."""

    @property
    def choices(self) -> dict[str, str]:
        """The four choices by the folders of their files."""
        return {"data": self.data, "rollout": self.rollout, "estimator": self.estimator, "scale": self.scale}


def trains_on_cpu(config: Any) -> bool:
    """Whether a composed configuration is for a machine without a GPU."""
    return str(config.trainer.device) == "cpu"


def compose(settings: TrainingSettings) -> Any:
    """The configuration as veRL gets it, an OmegaConf mapping.

    Raises:
        UserError: veRL or this project is not installed, there is no such choice, or an override names a key that veRL
            does not have.
    """
    from omegaconf import OmegaConf

    paths = {
        "data.train_files": settings.data_dir.resolve() / "train.parquet",
        "data.val_files": settings.data_dir.resolve() / "validation.parquet",
        "actor_rollout_ref.model.path": policy_path(settings.model),
        "trainer.default_local_dir": settings.output_dir.resolve() / "checkpoints",
        "reward.custom_reward_function.path": _reward_file(),
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": VERL_ADDITIONS / "config" / "agent_loops.yaml",
    }
    config = compose_file(
        "train",
        [
            *(f"{folder}@_global_={name}" for folder, name in settings.choices.items()),
            *path_overrides(paths),
            *(["trainer.logger=[console,tensorboard,wandb]"] if settings.wandb else []),
            *([f"cobalt.keep_checkpoints={settings.keep}"] if settings.keep is not None else []),
            *settings.overrides,
        ],
    )
    reward = config.reward.custom_reward_function
    if reward.path is not None and "://" not in reward.path:
        reward.path = str(Path(reward.path).resolve())  # veRL's processes may run in other folders
    _derive(config)
    missing = sorted(OmegaConf.missing_keys(config.cobalt))
    if missing:
        raise UserError(
            f"none of the choices sets cobalt.{missing[0]} (cobalt_verl/config/common.yaml says which one should)"
        )
    return config


def _reward_file() -> Path:
    """The reward function at the paper's path in a checkout; without a checkout, that of the package."""
    of_checkout = VERL_ADDITIONS.parent / _REWARD_FILE
    return of_checkout if of_checkout.is_file() else VERL_ADDITIONS / _REWARD_FILE


def _derive(config: Any) -> None:
    """Set what follows from other settings, where it is not set.

    On GPUs the engine's longest sequence is a prompt with a response, for each turn of an episode as well; vLLM would
    plan for the model's, which is longer. TransferQueue gets a storage unit for each GPU, on a CPU for each rank: each
    rank writes and reads its share of a batch, and Ray reserves a CPU for each unit. Agent loops have two processes for
    each GPU, because each decodes and rewards samples on one core. Policy and reference are sharded within a node:
    over several, each layer would be gathered through the network.
    """
    from omegaconf import OmegaConf

    lengths = [config.data.max_prompt_length, config.data.max_response_length]
    counts = [config.trainer.nnodes, config.trainer.n_gpus_per_node]
    if any(type(value) is not int for value in (*lengths, *counts)):
        return  # `cobalt.training.checks` says so
    rollout, storage = config.actor_rollout_ref.rollout, config.transfer_queue.backend.SimpleStorage
    if rollout.max_model_len is None and not trains_on_cpu(config):
        OmegaConf.update(rollout, "max_model_len", sum(lengths))
    if storage.num_data_storage_units is None:
        OmegaConf.update(storage, "num_data_storage_units", max(1, math.prod(counts)))
    if rollout.agent.num_workers is None:
        OmegaConf.update(rollout.agent, "num_workers", 1 if trains_on_cpu(config) else max(1, 2 * math.prod(counts)))
    for part in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref):
        if part.fsdp_config.fsdp_size == -1 and config.trainer.nnodes > 1 and not trains_on_cpu(config):
            OmegaConf.update(part.fsdp_config, "fsdp_size", config.trainer.n_gpus_per_node)


def compose_file(name: str, overrides: Sequence[str]) -> Any:
    """A file of `cobalt_verl/config` with the files that it names, some of them veRL's.

    Args:
        name: The file, without its ending.
        overrides: Hydra overrides; later ones win.

    Returns:
        An OmegaConf mapping, in which every interpolation leads somewhere.

    Raises:
        UserError: veRL is not installed, or the configuration cannot be composed.
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
    _installed("cobalt_verl")
    search = f"hydra.searchpath=[{_quoted((_installed('verl') / 'trainer' / 'config').as_uri())}]"
    try:
        with initialize_config_dir(str(VERL_ADDITIONS / "config"), version_base=None):
            try:
                config = hydra_compose(name, [search, *overrides])
            except HydraException as error:
                unknown = _UNKNOWN_KEY.search(str(error))
                if unknown is None:
                    raise
                choices = [item for item in overrides if "@" in item.partition("=")[0]]
                raise UserError(_unknown_setting(unknown[1], hydra_compose(name, [search, *choices]))) from None
            OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        reason = str(error).partition("Config search path")[0]
        raise UserError(f"the configuration cannot be composed: {' '.join(reason.split())}") from None
    return config


def _unknown_setting(key: str, config: Any) -> str:
    """A sentence about an override of a setting that is not there, with the most similar ones that are."""
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.to_container(config)
    names = list(_leaves(whole))
    similar = [name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2]]
    similar.sort(key=lambda name: not name.endswith(f".{key}"))
    similar = (similar + difflib.get_close_matches(key, names, n=3, cutoff=0.8))[:3]
    advice = f"did you mean {' or '.join(similar)}?" if similar else "none has a similar name"
    return f"there is no setting {key!r}: {advice} (+{key}=VALUE would add it, for code of your own that reads it)"


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings of a configuration but those of the critic, which no run here has."""
    for name, value in section.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif not prefix.startswith("critic."):
            yield f"{prefix}{name}"


def check_flags(settings: RunSettings) -> None:
    """Check the flags of a training command that the configuration does not have.

    Raises:
        UserError: the output is a file or the folder of the data, or the limit is not above 0.
    """
    output = settings.output_dir.resolve()
    if output.is_file() or output == settings.data_dir.resolve():
        raise UserError(f"--output_dir {output} is a file, or the folder of the data: name another folder")
    if not settings.hang_limit > 0:
        raise UserError(f"--hang_limit is {settings.hang_limit:g}: it must be above 0")


def whole_number_errors(config: Any, least: Mapping[str, int], optional: Collection[str] = ()) -> Iterator[str]:
    """Sentences about settings that are not whole numbers.

    Args:
        config: A composed configuration.
        least: The dotted names of the settings, and the least value of each.
        optional: Names of those that may be null.
    """
    from omegaconf import OmegaConf

    for key, lowest in least.items():
        value = OmegaConf.select(config, key)
        if (value is None and key in optional) or (type(value) is int and value >= lowest):
            continue
        yield f"{key} is {value!r}: it must be a whole number of {lowest} or more"


def above_zero_errors(config: Any, keys: Collection[str]) -> Iterator[str]:
    """Sentences about settings that are not finite numbers above 0, with which a run would train nothing or diverge."""
    from omegaconf import OmegaConf

    for key in keys:
        value = OmegaConf.select(config, key)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            yield f"{key} is {value!r}: it must be a number above 0"


def path_overrides(paths: Mapping[str, Path | str]) -> list[str]:
    """Overrides that set keys to paths, whatever characters these have."""
    return [f"{key}={_quoted(str(path))}" for key, path in paths.items()]


def _installed(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f"{package} is not installed: run scripts/setup.sh with the profile cpu or gpu")
    return Path(spec.origin).parent


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def process_environment(output_dir: Path, *, on_cpu: bool) -> dict[str, str]:
    """Environment variables of veRL's driver and of all its processes.

    Modules that the user's own `VERL_USE_EXTERNAL_MODULES` names are imported after this project's.

    Args:
        output_dir: The run's folder.
        on_cpu: Whether there is no GPU (`trains_on_cpu`).
    """
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
    """The variables for Ray's runtime environment, as values of a configuration.

    On the cluster that `RAY_ADDRESS` names they include those of the shell that other nodes need, without secrets: the
    configuration is saved with the run. On a Ray of its own the run's processes have the shell's variables anyway.

    Args:
        variables: Those of this project (`process_environment`); they win.
        environment: The launcher's environment.
    """
    of_the_shell = passed_on(environment) if environment.get("RAY_ADDRESS") else {}
    # In a configuration `${` begins a reference to another key.
    return {name: value.replace("${", r"\${") for name, value in of_the_shell.items()} | dict(variables)
