"""Memory and time of evaluating and reporting a run, by its number of problems.

    python benchmarks/reading.py [--problems 6000] [--samples 16] [--turns 9]

Writes evaluated files (`synthetic.py`) with a quarter of the problems and with all of them, and evaluates and reports
each in a process of its own. If memory does not grow with the number of problems, files are read as a stream. A row has
the peak memory, the wall time, and the bytes that the process read, as counted by the kernel, in multiples of the
file's size. A report reads its file once. An evaluation first hashes its file for the manifest and then decodes it
once; at the end it reads its result twice more, to sort it. The judge is a stand-in that passes every program, so that
the time of judging is not measured.
"""

import asyncio
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic import write_evaluation

from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.problems.problem import TestSuite
from cobalt.report.runs import read_run
from cobalt.report.write import write_report
from cobalt.rollout.evaluate import TurnsSettings, evaluate_turns
from cobalt.stage.cli import run_script


@dataclass(frozen=True)
class Arguments:
    """Measure the reading of evaluated files."""

    problems: int = 6000
    """Number of problems in the larger file."""
    samples: int = 16
    """Number of trajectories for each problem."""
    turns: int = 9
    """Number of turns in each trajectory."""
    folder: Path | None = None
    """Folder for the files, with room for twice the larger one; by default a temporary one. The files are removed."""


class PassingJudge:
    """Passes every program at once."""

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """A result in which every test passed."""
        tests = len(suite)
        return ExecResult([True] * tests, [""] * tests, [Verdict(VerdictKind.PASSED)] * tests)

    async def describe(self) -> Mapping[str, Any]:
        """No settings."""
        return {}


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    print(f"{arguments.samples} samples, {arguments.turns} turns")
    print("problems       GB  what        peak MiB  seconds  times read")
    for problems in (max(1, arguments.problems // 4), arguments.problems):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            evaluation = Path(name) / "evaluation.jsonl"
            write_evaluation(evaluation, problems, arguments.samples, arguments.turns)
            size = evaluation.stat().st_size
            for what, work in (("report", _report), ("evaluation", _evaluate)):
                memory, seconds, read = _measure(work, evaluation)
                row = f"{problems:8} {size / 1e9:8.2f}  {what:<10} {memory:9.0f} {seconds:8.0f} {read / size:11.2f}"
                print(row, flush=True)
    return 0


def _report(evaluation: Path) -> None:
    write_report([read_run("run", evaluation)], evaluation.with_name("report"))


def _evaluate(evaluation: Path) -> None:
    again = evaluation.with_name("again.jsonl")
    asyncio.run(evaluate_turns(TurnsSettings(evaluation, again), PassingJudge()))


def _measure(work: Callable[[Path], None], evaluation: Path) -> tuple[float, float, int]:
    """Peak memory in MiB, wall time in seconds, and bytes read, for a process that calls `work`."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    started = time.perf_counter()
    process = context.Process(target=_child, args=(work, evaluation, sender))
    process.start()
    process.join()
    seconds = time.perf_counter() - started
    if process.exitcode != 0:
        raise SystemExit(f"the process ended with exit code {process.exitcode}; nothing was measured")
    memory, read = receiver.recv()
    return memory, seconds, read


def _child(work: Callable[[Path], None], evaluation: Path, sender: Any) -> None:
    before = _bytes_read()
    work(evaluation)
    read = _bytes_read() - before
    sender.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, read))


def _bytes_read() -> int:
    """Number of bytes that this process has read, from disk or cache."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


if __name__ == "__main__":
    run_script(Arguments, main)
