"""Environment variables: set for the duration of a block, passed on to the nodes of a cluster, or naming a folder."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_PASSED_ON = (
    "HF_",  # where models are cached, and whether the hub may be asked
    "TRANSFORMERS_",
    "WANDB_",
    "NCCL_",  # the network between GPUs
    "TORCH_NCCL_",
    "GLOO_",
    "UCX_",
    "PYTORCH_",
    "VLLM_",
    "COBALT_JUDGE_URL",
    "COBALT_HTTP",
)
"""Beginnings of the names of variables that the processes of a run need on every node of a Ray cluster. Processes there
have the shell's variables with which Ray was started; Ray's runtime environment carries these."""

_OF_ONE_NODE = frozenset({"VLLM_HOST_IP", "VLLM_RPC_BASE_PATH"})
"""Variables with such a name whose value is right on one node only."""

SHORT_WAIT = "3000"
"""`GOMP_SPINCOUNT` when torch is loaded: an idle thread looks for work for microseconds before it sleeps. With gomp's
default, a millisecond or more, it would take the core from what else runs."""

LOG_FOLDERS = 5

# A `key` is a word of its own: NCCL_IB_PKEY is not a secret.
_SECRET_NAME = re.compile(
    r".*(secret|password|passwd|passphrase|credential).*|.*(token|apikey|accesskey|authkey|privatekey)"
    r"|(.*[\W_])?(key|key[\W_]?id|pass)|.*access[\W_]?key[\W_]?id",
    re.IGNORECASE | re.DOTALL,
)
_SECRET_VALUE = re.compile(r".*://[^/\s]+@.*", re.DOTALL)  # an address with a user's name and password


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the processes of a run get on every node; no secrets, because Ray writes them to its logs."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_PASSED_ON)
        and name not in _OF_ONE_NODE
        and not (names_a_secret(name) or _SECRET_VALUE.fullmatch(value))
    }


def names_a_secret(name: str) -> bool:
    """Whether a variable, flag or setting of this name holds a key, a token or a password: WANDB_API_KEY, hf-token."""
    return _SECRET_NAME.fullmatch(name) is not None


@contextlib.contextmanager
def environment_variables(**values: str | None) -> Iterator[None]:
    """Set environment variables, or unset those that are None, for as long as the block runs."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def new_log_folder() -> Path:
    """A new folder in `$XDG_CACHE_HOME/cobalt/logs`, by default `~/.cache/cobalt/logs`, which other users cannot enter.

    The last `LOG_FOLDERS` stay, and those of living processes.

    Raises:
        OSError: it cannot be made.
    """
    logs = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cobalt" / "logs"
    folder = logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for older in sorted(path for path in logs.iterdir() if path.is_dir())[:-LOG_FOLDERS]:
        if not Path("/proc", older.name.rpartition("-")[2]).exists():
            shutil.rmtree(older, ignore_errors=True)
    return folder
