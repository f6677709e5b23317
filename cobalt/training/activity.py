"""Whether a run's processes and GPUs on this node do any work, as the operating system and nvidia-smi see it.

Work is more than what idle processes of Ray and veRL take, which poll and beat their hearts. A process that waits in a
busy loop works, too, as far as can be seen from outside; `cobalt.training.watching` knows that.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

_CORES = 0.5
"""Processes work if they take this share of a core or more, all together."""

_DISK = 2**20
"""They work if they read and write this many bytes a second or more."""

_GPU_PERCENT = 5
"""A GPU works if it was busy for this share of nvidia-smi's last interval, which is a second or less."""

_SMI_SECONDS = 30
"""How long nvidia-smi may take; it hangs when the driver does."""

_TICKS = os.sysconf("SC_CLK_TCK")

Usage = dict[int, tuple[float, int]]


class Activity:
    """What the run's processes have used so far."""

    def __init__(self) -> None:
        self._usage: Usage = {}
        self._at = 0.0

    def busy(self, pids: Collection[int], gpus: Collection[str]) -> bool:
        """Whether the processes have worked since the last call, or a GPU works now.

        Args:
            pids: Processes of the run on this node. Those that the same process has started belong to the run as well:
                on a Ray cluster that is the node's Ray. So do all descendants of this process.
            gpus: Index or name of the GPUs that the run uses; empty: all that `CUDA_VISIBLE_DEVICES` has.

        The first call has nothing to compare the processes with, and looks at the GPUs alone.
        """
        now, usage = time.monotonic(), _usage(_processes(pids))
        before, seconds = self._usage, now - self._at
        self._usage, self._at = usage, now
        if before:
            spent = [_since(used, before.get(pid)) for pid, used in usage.items()]
            cores, disk = (sum(part) / max(seconds, 1e-3) for part in zip((0.0, 0), *spent, strict=True))
            if cores >= _CORES or disk >= _DISK:
                return True
        return _gpu_works(gpus)


def _since(used: tuple[float, int], before: tuple[float, int] | None) -> tuple[float, int]:
    if before is None:
        return used
    return used[0] - before[0], used[1] - before[1]


def _processes(pids: Collection[int]) -> set[int]:
    """The run's processes, without this one; see `Activity.busy`.

    Their names or environments would not do: Ray and vLLM write over both.
    """
    children: dict[int, list[int]] = {}
    waiting = [os.getpid()]
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            # The name of the program, in brackets, may have spaces and brackets itself.
            pid, parent = int(entry.parent.name), int(entry.read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(pid)
            if pid in pids and parent > 1:
                waiting.append(parent)
    found: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found - {os.getpid()}


def _usage(pids: Collection[int]) -> Usage:
    """Seconds of CPU, with those of children that have ended, and bytes of disk traffic of each process."""
    usage = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            usage[pid] = sum(map(int, fields[11:15])) / _TICKS, _traffic(pid)
    return usage


def _traffic(pid: int) -> int:
    """Bytes that a process has read from disks and written to them; 0 for one that may not be looked at."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("read_bytes", "write_bytes")))
    return 0


def _gpu_works(gpus: Collection[str]) -> bool:
    """Whether one of the GPUs is busy. True as well if nvidia-smi cannot say, as with a part of a GPU (MIG)."""
    wanted = set(gpus) or {gpu.strip() for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()}
    listed = [[part.strip() for part in line.split(",")] for line in _smi()]
    used = [
        gpu
        for gpu in listed
        if any(name == gpu[0] or (name.startswith("GPU-") and gpu[1].startswith(name)) for name in wanted)
    ]
    return any(not percent.isdigit() or int(percent) >= _GPU_PERCENT for _, _, percent in used or listed)


def _smi() -> list[str]:
    """nvidia-smi's lines, one for each GPU: index, name, percent. None where there is no GPU, or its driver hangs."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return []
    try:
        output, _ = process.communicate(timeout=_SMI_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: a process that waits for a broken driver does not even end by this
        return []
    return [line for line in output.splitlines() if line.count(",") == 2] if process.returncode == 0 else []
