"""Run a command to its end and time it: shared by the benchmarks of training."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cobalt.stage.errors import InfrastructureError


def seconds(command: Sequence[str], variables: Mapping[str, str], log: Path) -> float:
    """Wall time of a command, whose output goes to the log.

    Args:
        command: Program and arguments.
        variables: Environment variables besides those of this process.
        log: File; replaced.

    Raises:
        InfrastructureError: it failed.
    """
    began = time.monotonic()
    with log.open("w") as output:
        code = subprocess.run(
            list(command), env={**os.environ, **variables}, stdout=output, stderr=output, check=False
        ).returncode
    if code:
        raise InfrastructureError(f"a run ended with exit code {code}; its log is {log}")
    return time.monotonic() - began
