"""The judge's speed on this machine: tests per second, and CPU time per test, with trivial programs.

A service runs in other processes, so only its rate can be measured. `benchmarks/` compares other schemes.
"""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from cobalt.judge.local import Judge
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import InfrastructureError

PROGRAM = "print(int(input()) * 2)"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Rate and cost of judging; `cpu_milliseconds_per_test` is None if it cannot be measured."""

    tests: int
    seconds: float
    cpu_milliseconds_per_test: float | None

    @property
    def tests_per_second(self) -> float:
        """Tests divided by wall time."""
        return self.tests / self.seconds


async def measure(judge: Judge, programs: int, tests: int, *, local: bool) -> Measurement:
    """Judge `programs` trivial programs of `tests` tests each, all at once.

    `local`: the judge's processes are descendants of this one, so that their CPU time can be read.

    Raises:
        InfrastructureError: the judge failed, or gave a wrong verdict.
    """
    numbers = range(tests)
    suite = TestSuite(tuple(f"{n}\n" for n in numbers), tuple(str(2 * n) for n in numbers))
    await judge.judge(PROGRAM, suite)
    cpu, started = _tree_cpu_seconds(), time.monotonic()
    results = await asyncio.gather(*(judge.judge(PROGRAM, suite) for _ in range(programs)))
    seconds, spent = time.monotonic() - started, _tree_cpu_seconds() - cpu
    if not all(result.all_passed for result in results):
        raise InfrastructureError("a trivial program got a wrong verdict")
    total = programs * tests
    return Measurement(total, seconds, 1000 * spent / total if local else None)


def _tree_cpu_seconds() -> float:
    """CPU time of this process and its living descendants, including that of their ended children."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    tree = {os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= children
    return sum(ticks.get(pid, 0) for pid in tree) / os.sysconf("SC_CLK_TCK")
