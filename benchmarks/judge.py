"""Speed of the judge: compared with two other ways to isolate a test, behind a URL, and over a long run.

    python benchmarks/judge.py schemes     # the judge, a fresh bubblewrap and Python per test, the paper's scheme
    python benchmarks/judge.py schemes --before CHECKOUT    # an earlier version of the judge as well
    python benchmarks/judge.py prelude     # what the graders' imports cost a test
    python benchmarks/judge.py serve       # programs of 20 tests, 64 at a time: in the process and by URL
    python benchmarks/judge.py serve --before CHECKOUT      # an earlier version, by its Ray handles, as well
    python benchmarks/judge.py host        # CPU time that a judge takes beside its sandboxes, here and over processes
    python benchmarks/judge.py linear      # 100,000 tests: rate, memory, descriptors and /tmp during the run

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
import tempfile
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
from cobalt.judge.measure import PROGRAM, Measurement, measure
from cobalt.judge.processes import SANDBOXES_OF_A_PROCESS, judging_processes
from cobalt.judge.sandbox.isolation import bwrap_command, interpreter_inside
from cobalt.judge.settings import usable_cores
from cobalt.problems.problem import TestSuite
from cobalt.stage.cli import run_script

TESTS = 20
ROUNDS = 5


@dataclass(frozen=True)
class Arguments:
    """Measure the judge's overhead on trivial programs."""

    part: Annotated[Literal["schemes", "prelude", "serve", "host", "linear"], tyro.conf.Positional]
    """The table to make."""
    tests: int = 100_000
    """Number of tests in the long run (`linear`)."""
    before: Path | None = None
    """A checkout of an earlier version, to be measured in turn with this one (`schemes`, `serve`)."""
    programs: int = 320
    """Number of programs in each measurement (`serve`, `host`)."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    parts = {
        "schemes": lambda: _schemes(arguments.before),
        "prelude": lambda: asyncio.run(_prelude()),
        "serve": lambda: _serve(arguments.before, arguments.programs),
        "host": lambda: asyncio.run(_host(arguments.programs)),
        "linear": lambda: _linear(arguments.tests),
    }
    parts[arguments.part]()
    return 0


def _schemes(before: Path | None) -> None:
    settings = JudgeSettings(concurrency=usable_cores())
    command = [*bwrap_command(settings), interpreter_inside(settings), "-S", "-c", PROGRAM]
    schemes: dict[str, Callable[[], Measurement]] = {
        "this judge": lambda: asyncio.run(_direct(settings, 200)),
        "bubblewrap + python per test": lambda: _pooled(_fresh, command, 400, settings.sandboxes),
        "the paper's scheme": lambda: _pooled(_managed, command, 100, settings.sandboxes),
    }
    if before is not None:
        schemes["the judge before"] = partial(_earlier, before.resolve(), 200)
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
    if before is not None:
        pairs = zip(figures["this judge"], figures["the judge before"], strict=True)
        ratios = sorted(now.tests_per_second / then.tests_per_second for now, then in pairs)
        print(f"this judge / the judge before: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


async def _prelude() -> None:
    """Time of a test in a suite of 20, for a program that defines its names and for one that may lack some."""
    programs = {
        "defines its names": "import math\nprint(2 * math.gcd(int(input()), 0))",
        "takes names from `import *`": "from math import *\nprint(2 * gcd(int(input()), 0))",
    }
    suite = TestSuite(tuple(f"{n}\n" for n in range(TESTS)), tuple(str(2 * n) for n in range(TESTS)))
    times: dict[tuple[str, str], list[float]] = {}
    async with (
        LocalJudge(JudgeSettings(concurrency=1)) as graders,
        LocalJudge(JudgeSettings(concurrency=1, prelude="none")) as none,
    ):
        for _ in tqdm(range(20), desc="rounds", unit="round"):
            for name, code in programs.items():
                for setting, judge in (("graders", graders), ("none", none)):
                    started = time.perf_counter()
                    result = await judge.judge(code, suite)
                    if not result.all_passed:
                        raise RuntimeError(result.feedback)
                    times.setdefault((name, setting), []).append(1000 * (time.perf_counter() - started) / TESTS)
    print("| the program | prelude=none, ms a test | prelude=graders | ratio |")
    print("|---|---|---|---|")
    for name in programs:
        without, with_it = (statistics.median(times[name, setting]) for setting in ("none", "graders"))
        print(f"| {name} | {without:.2f} | {with_it:.2f} | {with_it / without:.2f} |")


async def _direct(settings: JudgeSettings, programs: int) -> Measurement:
    async with LocalJudge(settings) as judge:
        return await measure(judge, programs, TESTS, local=True)


def _earlier(checkout: Path, programs: int) -> Measurement:
    """The measurement that the judge of another checkout reports of itself."""
    command = [sys.executable, "-m", "cobalt.judge", "measure", "--programs", str(programs), "--tests", str(TESTS)]
    said = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=600, check=True).stdout
    return Measurement(programs * TESTS, float(said.split(" tests in ")[1].split(" s:")[0]), None)


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
    return Measurement(tests, seconds, None)


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
import asyncio, json, sys, time
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
    if kind == "handles":
        from cobalt.judge import ServeJudge
        judge = ServeJudge()
        return [await rate(judge, programs, ""), await rate(judge, programs, "x" * 20_000)]
    from cobalt.judge import open_judge
    async with open_judge() as judge:
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


async def _host(programs: int) -> None:
    """CPU time of this process alone, in which there is no sandbox, while programs are judged."""
    spent: dict[str, list[float]] = {"sandboxes of this process": [], "sandboxes of two other processes": []}
    async with (
        LocalJudge(JudgeSettings(concurrency=2)) as local,
        judging_processes(JudgeSettings(concurrency=SANDBOXES_OF_A_PROCESS + 1)) as several,
    ):
        for _ in range(ROUNDS):
            for name, judge in zip(spent, (local, several), strict=True):
                await measure(judge, 20, TESTS, local=False)
                began = time.process_time()
                await measure(judge, programs, TESTS, local=False)
                spent[name].append(1000 * (time.process_time() - began) / programs)
    for name, times in spent.items():
        each = statistics.median(times)
        print(f"{name}: {each:.2f} ms of this process's CPU time a program, {each / TESTS:.3f} ms a test")


def _linear(tests: int) -> None:
    asyncio.run(_long_run(tests))


async def _long_run(tests: int) -> None:
    print("| tests | tests/s since the last row | memory of judge and sandboxes, MiB | descriptors | entries in /tmp |")
    print("|---|---|---|---|---|")
    done, step = 0, max(TESTS, tests // 10)
    async with LocalJudge() as judge:
        while done < tests:
            figures = await measure(judge, step // TESTS, TESTS, local=True)
            done += figures.tests
            _print_row(done, figures.tests_per_second)


def _print_row(done: int, rate: float) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    entries = len(list(Path(tempfile.gettempdir()).iterdir()))
    print(f"| {done} | {rate:.0f} | {_tree_memory():.0f} | {descriptors} | {entries} |", flush=True)


def _tree_memory() -> float:
    """Proportional resident memory of this process and its descendants, in MiB."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    total = 0
    for pid in parents:
        ancestor: Any = pid
        while ancestor not in (0, None, os.getpid()):
            ancestor = parents.get(ancestor)
        if ancestor:
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


if __name__ == "__main__":
    run_script(Arguments, main)
