"""CPU time of each process in a step of a training run: what the cores do, and which process has most to do.

    python benchmarks/processes.py runs/ft [--first 2] [--last 8]

Start it beside the run, on the same machine. It waits for the line of the step `--first` in the run's metrics, and ends
with that of `--last`; stop it by Ctrl-C if the run ends before. A process of a sandbox is gone before it could be
asked, so sandboxes count in the last line alone, with what is not shown and everything else that ended meanwhile.
"""

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
import tyro

from cobalt.cli import run_script
from cobalt.errors import UserError
from cobalt.training.run_folder import metrics_path

_SHOWN = 12
_NAME = 60
"""Characters of a command that are shown."""


@dataclass(frozen=True)
class Arguments:
    """Measure the CPU time of processes while a training run goes on."""

    run: tyro.conf.Positional[Path]
    """Folder of the training run."""
    first: int = 2
    """Begin when this step has ended."""
    last: int = 8
    """End when this step has ended."""


def wait_for(metrics: Path, step: int) -> None:
    """Return when a run's metrics have the line of a step."""
    while ended(metrics) < step:
        time.sleep(0.05)


def ended(metrics: Path) -> int:
    """The last step that a run's metrics have a whole line of; -1: none."""
    lines = metrics.read_bytes().splitlines(keepends=True) if metrics.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    return int(json.loads(whole[-1])["step"]) if whole else -1


def spent() -> tuple[dict[int, tuple[str, float]], float]:
    """By process: what it is called, and the seconds of CPU that it has had; and those of the whole machine."""
    found = {}
    for process in psutil.process_iter():
        try:
            times, words = process.cpu_times(), process.cmdline()
        except psutil.Error:  # it has ended
            continue
        name = " ".join(word.rpartition("/")[2] for word in words)[:_NAME]
        found[process.pid] = (name or process.name(), times.user + times.system)
    whole = psutil.cpu_times()
    return found, whole.user + whole.nice + whole.system + whole.irq + whole.softirq


def main(arguments: Arguments) -> int:
    """Wait for the run's steps and print the table."""
    steps = arguments.last - arguments.first
    if arguments.first < 0 or steps < 1:
        raise UserError("--first must be 0 or more, and --last above it")
    metrics = metrics_path(arguments.run)
    if ended(metrics) > arguments.first:
        raise UserError(f"{arguments.run} is at step {ended(metrics)} already: give later steps by --first and --last")
    wait_for(metrics, arguments.first)
    began, (before, busy_before) = time.monotonic(), spent()
    wait_for(metrics, arguments.last)
    seconds, (after, busy) = (time.monotonic() - began) / steps, spent()
    had: Counter[str] = Counter()
    for process, (name, total) in after.items():
        had[name] += (total - before.get(process, ("", 0.0))[1]) / steps
    used = (busy - busy_before) / steps
    cores = psutil.cpu_count() or 1
    print(f"a step: {seconds:.2f} s, in which {cores} cores were used for {used:.2f} s of {cores * seconds:.2f} s")
    shown = had.most_common(_SHOWN)
    for name, share in shown:
        print(f"{share:6.2f} s  {name}")
    print(f"{used - sum(share for _, share in shown):6.2f} s  other processes, and those that have ended")
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
