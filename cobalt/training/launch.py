"""Run one training: services beside it, veRL's driver as a child, a watchdog over both, and what is left behind.

The judge is real and runs on a Ray of its own (`cobalt.services`) unless the user's cluster is given. Nothing is
trained here: veRL does (`verl/plugin/cobalt_verl/main.py`).
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cobalt.errors import InfrastructureError
from cobalt.services import running_services
from cobalt.training.configuration import Run, process_environment

logger = logging.getLogger(__name__)

_LOGICAL_CPUS = 16
"""What Ray counts on a small machine: veRL's actors reserve more CPUs than they use."""

_OBJECT_STORE = 2**30


def launch(run: Run, config: Any, *, silence_limit: float) -> int:
    """Train, and return the exit code of veRL's driver.

    Args:
        run: The run.
        config: What `compose` made of it.
        silence_limit: Seconds without a line of output after which the run is taken for hung and ended.
    """
    from omegaconf import OmegaConf

    output = run.output_dir.resolve()
    output.mkdir(parents=True, exist_ok=True)
    variables = process_environment(run, config)
    config.ray_kwargs.ray_init.num_cpus = None  # veRL joins a cluster that is there
    OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", variables, force_add=True)
    OmegaConf.save(config, output / "config.yaml")
    (output / "failure.txt").unlink(missing_ok=True)
    with _services(run, config) as addresses:
        environment = os.environ | variables | addresses
        command = [sys.executable, "-m", "cobalt_verl.main", str(output / "config.yaml")]
        return _watch(command, environment, output / "train.log", silence_limit)


@contextlib.contextmanager
def _services(run: Run, config: Any) -> Iterator[dict[str, str]]:
    with running_services(
        num_cpus=max(_LOGICAL_CPUS, os.cpu_count() or 1),
        num_gpus=int(config.trainer.n_gpus_per_node) if run.on_cpu else None,
        object_store_memory=_OBJECT_STORE,
    ) as addresses:
        yield addresses


def _watch(command: list[str], environment: dict[str, str], log: Path, silence_limit: float) -> int:
    """Run the command, its output going to the log and to stdout; end it when it says nothing for too long."""
    with log.open("ab") as file:
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
        )
        heard = [time.monotonic()]

        def copy() -> None:
            assert child.stdout is not None
            for line in child.stdout:
                heard[0] = time.monotonic()
                file.write(line)
                file.flush()
                sys.stdout.buffer.write(line)
                sys.stdout.flush()

        reader = threading.Thread(target=copy, daemon=True)
        reader.start()
        try:
            while True:
                try:
                    code = child.wait(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() - heard[0] > silence_limit:
                        raise InfrastructureError(
                            f"training said nothing for {silence_limit:.0f} s and was ended; its log is {log}"
                        ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            reader.join(timeout=5)
        return code if code >= 0 else 128 - code
