"""Speed of the judge, compared with two other ways to isolate a test, and behind a URL.

    python benchmarks/judge.py schemes     # the judge, a fresh bubblewrap and Python per test, the paper's scheme
    python benchmarks/judge.py serve [--before CHECKOUT]    # in the process, by URL, by the Ray handles of before

Every test is trivial, so that the overhead is measured. All schemes of a table take turns in one run on one machine, at
the same concurrency (one test for each core). Figures are medians over the rounds; only their ratios are meaningful.
CPU time is that of the whole machine, the judge's start included, so the machine should do nothing else. The paper's
scheme (a `multiprocessing` manager, a process and a bubblewrap for each test) is imitated, not copied.
"""

import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tqdm import tqdm

from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.judge.sandbox.isolation import bwrap_command, interpreter_inside
from cobalt.judge.settings import usable_cores
from cobalt.problems.problem import TestSuite
from cobalt.stage.cli import run_script

PROGRAM = "print(int(input()) * 2)"
TESTS = 20
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Measurement:
    """Number of tests, and the time that they took."""

    tests: int
    seconds: float

    @property
    def tests_per_second(self) -> float:
        """Tests divided by wall time."""
        return self.tests / self.seconds


@dataclass(frozen=True)
class Arguments:
    """Measure the judge's overhead on trivial programs."""

    part: Annotated[Literal["schemes", "serve"], tyro.conf.Positional]
    """The table to make."""
    before: Path | None = None
    """A checkout of an earlier version whose judge is a Ray actor (`serve`)."""
    programs: int = 320
    """Number of programs of each measurement (`serve`)."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    if arguments.part == "schemes":
        _schemes()
    else:
        _serve(arguments.before, arguments.programs)
    return 0


def _schemes() -> None:
    settings = JudgeSettings(concurrency=usable_cores())
    command = [*bwrap_command(settings), interpreter_inside(settings), "-S", "-c", PROGRAM]
    schemes: dict[str, Callable[[], Measurement]] = {
        "this judge": lambda: asyncio.run(_direct(settings, 200)),
        "bubblewrap + python per test": lambda: _pooled(_fresh, command, 400, settings.sandboxes),
        "the paper's scheme": lambda: _pooled(_managed, command, 100, settings.sandboxes),
    }
    figures: dict[str, list[Measurement]] = {name: [] for name in schemes}
    cpu: dict[str, list[float]] = {name: [] for name in schemes}
    memory = dict.fromkeys(schemes, 0.0)
    for _ in tqdm(range(ROUNDS), desc="rounds", unit="round"):
        for name, run in schemes.items():
            with _PeakMemory() as peak:
                busy = _busy_seconds()
                figures[name].append(run())
                cpu[name].append(1000 * (_busy_seconds() - busy) / figures[name][-1].tests)
            memory[name] = max(memory[name], peak.mebibytes)
    ours = statistics.median(item.tests_per_second for item in figures["this judge"])
    print(
        f"{settings.sandboxes} tests at a time, suites of {TESTS}, medians of {ROUNDS} rounds, load average at the end "
        f"{os.getloadavg()[0]:.1f}"
    )
    print("| scheme | tests/s | CPU per test, ms | peak memory, MiB | this judge is faster by |")
    print("|---|---|---|---|---|")
    for name, items in figures.items():
        rate = statistics.median(item.tests_per_second for item in items)
        print(f"| {name} | {rate:.0f} | {statistics.median(cpu[name]):.2f} | {memory[name]:.0f} | {ours / rate:.1f} |")


async def _direct(settings: JudgeSettings, programs: int) -> Measurement:
    numbers = range(TESTS)
    suite = TestSuite(tuple(f"{n}\n" for n in numbers), tuple(str(2 * n) for n in numbers))
    async with LocalJudge(settings) as judge:
        await judge.judge(PROGRAM, suite)
        started = time.monotonic()
        results = await asyncio.gather(*(judge.judge(PROGRAM, suite) for _ in range(programs)))
        seconds = time.monotonic() - started
    if not all(result.all_passed for result in results):
        raise SystemExit("a trivial program failed; nothing was measured")
    return Measurement(programs * TESTS, seconds)


def _fresh(command: list[str], number: int) -> bool:
    finished = subprocess.run(command, input=f"{number}\n", capture_output=True, text=True, timeout=60, check=False)
    return finished.stdout.strip() == str(2 * number)


def _managed(command: list[str], number: int) -> bool:
    """One test as the paper's code runs it: the result is returned in a manager's list."""
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        results = manager.list()
        process = context.Process(target=_report, args=(results, command, number))
        process.start()
        process.join(timeout=60)
        return bool(results and results[0])


def _report(results: Any, command: list[str], number: int) -> None:
    results.append(_fresh(command, number))


def _pooled(run: Callable[[list[str], int], bool], command: list[str], tests: int, workers: int) -> Measurement:
    started = time.monotonic()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        passed = list(pool.map(partial(run, command), range(tests)))
    seconds = time.monotonic() - started
    if not all(passed):
        raise SystemExit("a trivial program failed; nothing was measured")
    return Measurement(tests, seconds)


def _busy_seconds() -> float:
    """CPU time of the whole machine, because some processes of bubblewrap are counted in no parent's CPU time."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


class _PeakMemory:
    """The most memory in use on this machine above that at the block's start, measured ten times a second."""

    def __enter__(self) -> "_PeakMemory":
        self.mebibytes = 0.0
        self._watcher = subprocess.Popen(
            [sys.executable, "-S", "-c", _WATCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._watcher.stdout is not None
        self._watcher.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        answer, _ = self._watcher.communicate()
        self.mebibytes = float(answer)


_WATCH = """
import select, sys
def used():
    lines = dict(line.split(":") for line in open("/proc/meminfo"))
    return int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])
start = peak = used()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    peak = max(peak, used())
print((peak - start) / 1024)
"""


_ROOT = Path(__file__).parents[1]
_SERVED = ["-m", "cobalt.services", "--", sys.executable]
_RATES = """
import asyncio, contextlib, json, sys, time
from cobalt.problems.problem import TestSuite

async def rate(judge, programs, padding):
    suites = [
        TestSuite(tuple(f"{n}\\n{number}{padding}" for n in range(20)), tuple(str(2 * n) for n in range(20)))
        for number in range(-(-programs // 16))  # 16 samples of a problem
    ]
    at_a_time = asyncio.Semaphore(64)
    async def judged(index):
        async with at_a_time:
            return await judge.judge(f"print(int(input()) * 2)  # {index}", suites[index // 16])
    await asyncio.gather(*map(judged, range(min(programs, 32))))
    began = time.monotonic()
    results = await asyncio.gather(*map(judged, range(programs)))
    assert all(result.all_passed for result in results)
    return 20 * programs / (time.monotonic() - began)

async def main(kind, programs):
    import cobalt.judge
    opened = contextlib.nullcontext(cobalt.judge.ServeJudge()) if kind == "handles" else cobalt.judge.open_judge()
    async with opened as judge:
        return [await rate(judge, programs, ""), await rate(judge, programs, "x" * 20_000)]

print("rates", json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
"""
"""Prints tests a second with trivial suites, and with suites of 400 kB, in this version or an earlier one."""


def _serve(before: Path | None, programs: int) -> None:
    kinds = {
        "in the process": ("url or process", _ROOT, []),
        "by URL": ("url or process", _ROOT, _SERVED),
    }
    if before is not None:
        kinds["by handles before"] = ("handles", before.resolve(), _SERVED)
    rates: dict[str, list[list[float]]] = {name: [] for name in kinds}
    for _ in tqdm(range(ROUNDS), desc="rounds", unit="round"):
        for name, (kind, checkout, services) in kinds.items():
            rates[name].append(_rates(kind, checkout, services, programs))
    reference = list(rates)[-1] if before is not None else "in the process"
    print(f"64 programs at a time, suites of 20 tests, medians of {ROUNDS} rounds; ratios are to {reference}")
    print("| judge | tests/s | ratio | tests/s, suites of 400 kB | ratio |")
    print("|---|---|---|---|---|")
    for name, rounds in rates.items():
        cells = []
        for size in (0, 1):
            ratios = sorted(mine[size] / other[size] for mine, other in zip(rounds, rates[reference], strict=True))
            cells.append(f"{statistics.median(item[size] for item in rounds):.0f}")
            cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        print(f"| {name} | {' | '.join(cells)} |")


def _rates(kind: str, checkout: Path, services: list[str], programs: int) -> list[float]:
    """Measure in a process of its own, whose packages are those of the checkout."""
    command = [sys.executable, *services, "-c", _RATES, kind, str(programs)]
    path = os.pathsep.join([str(checkout), str(checkout / "verl")])
    finished = subprocess.run(
        command, cwd=checkout, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    line = next((line for line in finished.stdout.splitlines() if line.startswith("rates ")), None)
    if line is None:
        raise SystemExit(f"nothing was measured in {checkout}: {finished.stderr[-2000:]}")
    rates: list[float] = json.loads(line.removeprefix("rates "))
    return rates


if __name__ == "__main__":
    run_script(Arguments, main)
