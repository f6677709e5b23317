"""The whole configuration of a run: veRL's defaults, four choices of `cobalt_verl/config`, paths, the user's overrides.

The choices are data, rollout, estimator with its loss, and scale, each a file of its own. This module only composes;
`cobalt.training.checks` checks the result. veRL is not imported: its configuration files are found where it is
installed.
"""

import difflib
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The settings that decide a training run, besides the configuration files.

    Attributes:
        data_dir: Folder with train.parquet and validation.parquet.
        model: The policy to start from: a folder or a hub name.
        output_dir: Folder for checkpoints, metrics and logs.
        data: A file of `cobalt_verl/config/data`: what the prompts are.
        rollout: A file of `cobalt_verl/config/rollout`: how a prompt's samples are generated.
        estimator: A file of `cobalt_verl/config/estimator`: the advantages and the loss.
        scale: A file of `cobalt_verl/config/scale`: sizes, and the machine they are for.
        keep: How many of the last checkpoints to keep; None: as many as the scale says.
        overrides: Hydra overrides, such as `data.train_batch_size=8`; they are applied last.
        wandb: Log to Weights & Biases too.
    """

    data_dir: Path
    model: str
    output_dir: Path
    data: str = "problems"
    rollout: str = "single_turn"
    estimator: str = "grpo"
    scale: str = "pocket"
    keep: int | None = None
    overrides: tuple[str, ...] = ()
    wandb: bool = False

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

    for folder, name in settings.choices.items():
        check_choice(folder, name)
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
    _limit_engine(config)
    _size_queue(config)
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


def _limit_engine(config: Any) -> None:
    """Set the engine's longest sequence on GPUs, where none is set: vLLM would plan for the model's, which is longer.

    No turn of an episode sees more than `data.max_prompt_length` or writes more than `data.max_response_length`.
    """
    from omegaconf import OmegaConf

    key = "actor_rollout_ref.rollout.max_model_len"
    lengths = [OmegaConf.select(config, f"data.max_{part}_length") for part in ("prompt", "response")]
    on_cpu = OmegaConf.select(config, "trainer.device") == "cpu"
    if not on_cpu and OmegaConf.select(config, key) is None and all(isinstance(length, int) for length in lengths):
        OmegaConf.update(config, key, sum(lengths))


def _size_queue(config: Any) -> None:
    """Set the number of TransferQueue's storage units where none is set: one for each GPU, on a CPU for each rank.

    Each rank writes and reads its share of a batch. Ray reserves a CPU for each unit.
    """
    from omegaconf import OmegaConf

    key = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    gpus = [OmegaConf.select(config, f"trainer.{part}") for part in ("nnodes", "n_gpus_per_node")]
    if OmegaConf.select(config, key) is None and all(isinstance(count, int) for count in gpus):
        OmegaConf.update(config, key, max(1, gpus[0] * gpus[1]))


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
                there = hydra_compose(name, [search, *choices])
                raise UserError(_unknown_setting(unknown[1], list(_keys(there)))) from None
            OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise UserError(f"the configuration cannot be composed: {' '.join(str(error).split())}") from None
    return config


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings of a configuration, sections included; nothing is resolved."""
    from omegaconf import OmegaConf

    for name in config:
        yield f"{prefix}{name}"
        if not OmegaConf.is_missing(config, name) and OmegaConf.is_dict(inner := config._get_node(name)):
            yield from _keys(inner, f"{prefix}{name}.")


def _unknown_setting(key: str, there: Sequence[str]) -> str:
    """A sentence about an override of a setting that is not there, with the most similar ones that are."""
    there = [name for name in there if not name.startswith("critic.")]  # which no run here has
    last = key.rpartition(".")[2]
    similar = [name for name in there if name.endswith(f".{key}")]
    similar += [name for name in there if name.rpartition(".")[2] == last]
    similar += difflib.get_close_matches(key, there, n=3, cutoff=0.8)
    similar = list(dict.fromkeys(similar))
    advice = f"did you mean {' or '.join(similar[:3])}?" if similar else "none has a similar name"
    return f"there is no setting {key!r}: {advice} (+{key}=VALUE would add it, for code of your own that reads it)"


def check_flags(data_dir: Path, output_dir: Path, hang_limit: float) -> None:
    """Check the flags of a training command that veRL's configuration does not have.

    Raises:
        UserError: the output is a file or the folder of the data, or the limit is not above 0.
    """
    output = output_dir.resolve()
    if output.exists() and not output.is_dir():
        raise UserError(f"--output_dir {output} is a file: name a folder")
    if output == data_dir.resolve():
        raise UserError(f"--output_dir {output} is the folder of the data: name another one")
    if not hang_limit > 0:
        raise UserError(f"--hang_limit is {hang_limit:g}: it must be above 0")


def path_overrides(paths: Mapping[str, Path | str]) -> list[str]:
    """Overrides that set keys to paths, whatever characters these have."""
    return [f"{key}={_quoted(str(path))}" for key, path in paths.items()]


def check_choice(folder: str, name: str) -> None:
    """Check that a folder of `cobalt_verl/config` has a file of this name.

    Raises:
        UserError: it has not; the message lists those that it has.
    """
    there = sorted(path.stem for path in (VERL_ADDITIONS / "config" / folder).glob("*.yaml"))
    if name not in there:
        raise UserError(f"there is no {folder} {name!r}: give one of {', '.join(there)} (cobalt_verl/config/{folder})")


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
