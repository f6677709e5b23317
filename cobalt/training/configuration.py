"""The whole configuration of one run: veRL's defaults, this project's (`verl/config`), paths, the user's overrides.

Composes only; `cobalt.training.checks` looks at what came out. veRL is not imported: its configuration files are found
where it is installed.
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cobalt.errors import UserError

Method = Literal["single_turn", "multi_turn"]
Profile = Literal["pocket", "paper"]

VERL_FOLDER = Path(__file__).resolve().parents[2] / "verl"
"""What this project adds to veRL."""


@dataclass(frozen=True, slots=True)
class Run:
    """What decides a training run, beside the configuration files.

    Attributes:
        method: "single_turn" (FT) or "multi_turn" (Cobalt).
        profile: Scale, and the machine it is for.
        data_dir: Folder with train.parquet and validation.parquet.
        model: The policy to begin with: a folder or a hub name.
        output_dir: Folder for checkpoints, metrics and logs.
        overrides: Hydra overrides, such as `data.train_batch_size=8`; the last word.
        wandb: Log to Weights & Biases too.
    """

    method: Method
    profile: Profile
    data_dir: Path
    model: str
    output_dir: Path
    overrides: tuple[str, ...] = ()
    wandb: bool = False

    @property
    def on_cpu(self) -> bool:
        """Whether the profile is for a machine without a GPU."""
        return self.profile == "pocket"


def compose(run: Run) -> Any:
    """The configuration as veRL gets it, an OmegaConf mapping.

    Raises:
        UserError: veRL is not installed, or an override names a key that veRL does not have.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    model = Path(run.model)
    paths = {
        "data.train_files": run.data_dir.resolve() / "train.parquet",
        "data.val_files": run.data_dir.resolve() / "validation.parquet",
        "actor_rollout_ref.model.path": model.resolve() if model.exists() else run.model,
        "trainer.default_local_dir": run.output_dir.resolve() / "checkpoints",
        "reward.custom_reward_function.path": VERL_FOLDER / "code_reward_func_think.py",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": VERL_FOLDER / "config" / "agent_loops.yaml",
    }
    overrides = [
        f"hydra.searchpath=[{_quoted(_verl_config().as_uri())}]",
        f"method={run.method}",
        f"profile={run.profile}",
        *(f"{key}={_quoted(str(path))}" for key, path in paths.items()),
        *(["trainer.logger=[console,tensorboard,wandb]"] if run.wandb else []),
        *run.overrides,
    ]
    try:
        with initialize_config_dir(str(VERL_FOLDER / "config"), version_base=None):
            config = hydra_compose("train", overrides)
            OmegaConf.to_container(config, resolve=True)  # an interpolation that leads nowhere is found here
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"the configuration cannot be composed: {' '.join(str(error).split())}") from None
    return config


def _verl_config() -> Path:
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise UserError("veRL is not installed: run scripts/setup.sh with the profile cpu or gpu")
    return Path(spec.origin).parent / "trainer" / "config"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def process_environment(run: Run) -> dict[str, str]:
    """Environment variables of veRL's driver and of all its processes."""
    folders = [VERL_FOLDER.parent, VERL_FOLDER / "plugin", *([VERL_FOLDER / "cpu"] if run.on_cpu else [])]
    output = run.output_dir.resolve()
    shared = {
        "PYTHONPATH": ":".join(map(str, folders)),
        "COBALT_METRICS_FILE": str(output / "metrics.jsonl"),
        "COBALT_FAILURE_FILE": str(output / "failure.txt"),
        "TENSORBOARD_DIR": str(output / "tensorboard"),
        "HYDRA_FULL_ERROR": "1",
    }
    if not run.on_cpu:
        return shared
    return shared | {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "cobalt_verl_cpu",
        # The engine that veRL registers for CUDA is the one that the platform stands in for.
        "VERL_ENGINE_DEVICE": "cuda",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Generation and update take turns, so that each may use all cores.
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "OMP_WAIT_POLICY": "PASSIVE",
        # Large tensors come from memory that the process keeps; fresh pages are dear on virtual machines.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**36),
    }
