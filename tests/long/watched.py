"""Helpers of the fault matrix, the soak and the fuzzing: services in a process of their own, and descendants.

This process becomes the parent of every orphan among its descendants, so that every process that a run has started is
still found, however its parent was killed. Processes of other users and programs are listed but never signalled.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from cobalt.stage.errors import UserError

HOLD = (
    "import json, os, sys; names = [n for n in os.environ if n.startswith('COBALT_')];"
    " print(json.dumps({n: os.environ[n] for n in names}), flush=True); sys.stdin.read()"
)
"""A program that prints the environment variables of the services and ends when its standard input is closed."""

ROOT = Path(__file__).parents[2]
PAUSE = 0.02
"""Seconds between two checks of something that does not notify of changes, such as another process's file."""

_SET_CHILD_SUBREAPER = 36

Value = TypeVar("Found")


class Broken(Exception):
    """An invariant does not hold; the message says which one, and what was seen instead."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its id, its parent's id, the letter of its state and its command line."""

    pid: int
    parent: int
    state: str
    command: str


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of every orphan among its descendants."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def all_processes() -> dict[int, Process]:
    """Every process that is visible to this one, by id."""
    processes: dict[int, Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue  # it has ended meanwhile
            processes[int(entry.name)] = Process(int(entry.name), int(fields[1]), fields[0], command)
    return processes


def below(root: int) -> list[Process]:
    """The living descendants of the process `root`, without itself; a child comes after its parent."""
    everything = all_processes()
    children: dict[int, list[Process]] = {}
    for process in everything.values():
        children.setdefault(process.parent, []).append(process)
    descendants: list[Process] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(0), []):
            waiting.append(child.pid)
            if child.state not in "ZX":
                descendants.append(child)
    return descendants


def family() -> list[Process]:
    """The living descendants of this process."""
    return below(os.getpid())


def start(command: list[str], log: IO[bytes] | None, **options: object) -> "subprocess.Popen[bytes]":
    """Start a command in the project's folder as leader of a process group; its output goes to `log`, if given."""
    target = subprocess.DEVNULL if log is None else log
    settings = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "stdout": target, "stderr": target, "process_group": 0}
    return subprocess.Popen(command, **(settings | options))  # type: ignore[call-overload, no-any-return]


def wait_until(condition: Callable[[], Value], seconds: float, what: str) -> Value:
    """Call `condition` repeatedly until it returns something; returns that.

    Raises:
        Broken: `condition` returned nothing within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Broken(f"{what}: not within {seconds:g} s")
        time.sleep(PAUSE)


def named(prefix: str, processes: list[Process] | None = None) -> list[Process]:
    """The descendants whose command line begins with `prefix`, whose program's path ends with it, or `python -m` it."""
    return [
        process
        for process in (family() if processes is None else processes)
        if process.command.startswith(prefix)
        or process.command.partition(" ")[0].endswith(prefix)
        or f" -m {prefix}" in process.command
    ]


def end(processes: list[Process]) -> None:
    """Kill the processes that a failed run has left."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def check_flags(folder: Path, **numbers: float) -> None:
    """Refuse numbers that are not above 0, and make the folder of results.

    Raises:
        UserError: a number is not above 0, or the folder cannot be made.
    """
    for name, number in numbers.items():
        if not number > 0:
            raise UserError(f"--{name} is {number}: it must be above 0")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output_dir {folder}: {error.strerror}") from None


@contextmanager
def held_services(
    log: Path,
    *,
    settings: Mapping[str, str] | None = None,
    model: str | None = None,
    prefix: tuple[str, ...] = (),
    expect_success: bool = True,
) -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, str]]]:
    """`python -m cobalt.services` in a process of its own, for as long as the block runs.

    Args:
        log: File for the messages of the services.
        settings: The judge's settings.
        model: Folder of an engine's model; None: the judge alone.
        prefix: A command that runs the services' command, such as nsenter.
        expect_success: Whether the process must end with exit code 0 when the block ends.

    Yields:
        The process, and the environment variables by which its services are found.

    Raises:
        Broken: the services did not start, or did not end as expected.
    """
    command = [*prefix, sys.executable, "-m", "cobalt.services"]
    if model is not None:
        command += ["--model", model, "--engine", "max_model_len=1024", "--engine", "dtype=float32"]
        command += ["--engine", "kv_cache_gib=1"]
    for name, value in (settings or {}).items():
        command += ["--judge", f"{name}={value}"]
    command += ["--", sys.executable, "-c", HOLD]
    with log.open("ab") as errors:
        process = start(command, errors, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise Broken(f"the services did not start: {last_words(log)}")
        yield process, json.loads(line)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            code = process.wait(120)
        except subprocess.TimeoutExpired:
            end([Process(process.pid, 0, "", ""), *below(process.pid)])
            code = process.wait()
    if expect_success and code != 0:
        raise Broken(f"the services ended with exit code {code}: {last_words(log)}")


def last_words(log: Path) -> str:
    """The last non-blank line of a log, or a remark that there is none."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "(nothing was said)"


def private_memory(processes: list[Process]) -> float:
    """Memory of processes in MiB, with shared memory counted once (proportional set size)."""
    total = 0
    for process in processes:
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def descriptors(pid: int) -> int:
    """The number of files that a process has open; 0 if it has ended."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0
