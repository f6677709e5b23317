"""How fast the judge is here: tests per second, and CPU time a test, over trivial programs.

CPU time is that of this process and of everything below it, sandboxes included; through a service, which runs
elsewhere, only the rate can be measured. It compares with no other scheme; `benchmarks/` does.
"""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from cobalt.errors import InfrastructureError
from cobalt.judge.local import Judge
from cobalt.problem import TestSuite

PROGRAM = "print(int(input()) * 2)"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Rate and cost of judging; `cpu_milliseconds_per_test` is None where it cannot be seen."""

    tests: int
    seconds: float
    cpu_milliseconds_per_test: float | None

    @property
    def tests_per_second(self) -> float:
        """Tests over wall time."""
        return self.tests / self.seconds


async def measure(judge: Judge, programs: int, tests: int, *, local: bool) -> Measurement:
    """Judge `programs` trivial programs of `tests` tests each, all at once.

    Args:
        judge: Open and warm.
        programs: How many programs.
        tests: Tests of each.
        local: Whether the judge's processes are below this one, so that their CPU time can be read.

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
    """CPU time of this process and its living descendants, their ended children included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))
    total = 0
    for pid, own in ticks.items():
        ancestor = pid
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        total += own if ancestor else 0
    return total / os.sysconf("SC_CLK_TCK")
