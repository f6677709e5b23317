"""Memory and time of preproc_taco.py at the data set's size: synthetic rows, most small and some of many megabytes.

    python benchmarks/taco.py                      12,898 rows, every solution accepted without a run: memory
    python benchmarks/taco.py --rows 300 --judge   300 rows with the real judge: time

The measured process is separate, so that making the rows does not count. The time of real rows depends on their
solutions: here the first one passes, 20 tests of about a millisecond each.
"""

import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from cobalt.datasets.taco import TacoSettings, preprocess_taco
from cobalt.judge import ExecResult, JudgeSettings, LocalJudge, Verdict, VerdictKind
from cobalt.problem import TestSuite

TESTS = 40
STATEMENT = "Read numbers from the input and print their sum. " * 20


@dataclass(frozen=True)
class Arguments:
    """Measure the preprocessing of TACO."""

    rows: int = 12_898
    """Number of rows in the data set."""
    judge: bool = False
    """Use the real judge."""
    measure: Path | None = None
    """Measure with this file; set by the benchmark itself."""


class AcceptingJudge:
    """Accepts every program and runs none."""

    async def describe(self) -> Mapping[str, Any]:
        """No settings decide its verdicts."""
        return {}

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """A result in which every test passed."""
        count = len(suite)
        return ExecResult([True] * count, [""] * count, [Verdict(VerdictKind.PASSED)] * count, "strip", False, 0.0, 0.0)


def row(number: int) -> Mapping[str, Any]:
    """One row with 40 tests; the inputs have up to 250 kB in one row of a hundred, and up to 3 kB in the others."""
    rng = random.Random(number)
    count = 50_000 if number % 100 == 0 else rng.randint(1, 600)
    inputs = [" ".join(str(rng.randint(1, 9999)) for _ in range(rng.randint(1, count))) + "\n" for _ in range(TESTS)]
    outputs = [f"{sum(map(int, text.split()))}\n" for text in inputs]
    return {
        "id": number,
        "question": STATEMENT,
        "solutions": ["print(sum(map(int, input().split())))"] * 20,
        "input_output": json.dumps({"inputs": inputs, "outputs": outputs}),
        "difficulty": "EASY",
        "source": "codeforces",
        "starter_code": "",
    }


async def preprocess(source: Path, real: bool) -> None:
    """The whole run, as the script does it."""
    settings = JudgeSettings()
    run = TacoSettings(source.parent / "out", source, dev_size=25, concurrency=settings.sandboxes + 2)
    if not real:
        await preprocess_taco(run, AcceptingJudge())
        return
    async with LocalJudge(settings) as judge:
        await preprocess_taco(run, judge)


def main(arguments: Arguments) -> None:
    """Make the rows and measure a process that reads them; with `measure`, run as that process."""
    if arguments.measure is not None:
        started = time.monotonic()
        asyncio.run(preprocess(arguments.measure, arguments.judge))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{time.monotonic() - started:.0f} s, peak memory {peak:.0f} MiB")
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "taco.jsonl"
        with source.open("w", encoding="utf-8") as output:
            for number in range(arguments.rows):
                output.write(json.dumps(row(number)) + "\n")
        print(f"{arguments.rows} rows, {source.stat().st_size >> 20} MiB")
        flags = ["--measure", str(source), *(["--judge"] if arguments.judge else [])]
        for what in ("first run", "the same command again"):
            print(what, end=": ", flush=True)
            subprocess.run([sys.executable, __file__, *flags], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main(tyro.cli(Arguments))
