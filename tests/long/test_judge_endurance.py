"""The judge under load and for long: the same verdicts on a busy machine, and no descriptor or memory lost.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import asyncio
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from support import descendants

from cobalt.judge import ExecResult, JudgeSettings, LocalJudge, VerdictKind
from cobalt.problems.problem import TestSuite

pytestmark = pytest.mark.sandbox

PASSED = VerdictKind.PASSED
MIB = 1 << 20


def _burn(stop: object) -> None:
    while not stop.is_set():  # type: ignore[attr-defined]
        sum(range(100000))


def test_a_program_near_its_limit_gets_the_same_verdict_on_a_loaded_machine():
    code = "import time\nwhile time.process_time() < 0.14: pass\nprint(1)"
    over = "import time\nwhile time.process_time() < 0.3: pass\nprint(1)"
    suite = TestSuite(tuple(map(str, range(200))), ("1",) * 200)

    async def course() -> tuple[ExecResult, ExecResult]:
        settings = JudgeSettings(cpu_seconds=0.2, wall_seconds=0.6)
        async with LocalJudge(settings) as judge:
            return await judge.judge(code, suite), await judge.judge(over, suite)

    stop = multiprocessing.Event()
    # Eight times the cores' worth of work, at the judge's own priority.
    load = [multiprocessing.Process(target=_burn, args=(stop,)) for _ in range(8 * len(os.sched_getaffinity(0)))]
    for process in load:
        process.start()
    try:
        below, above = asyncio.run(course())
    finally:
        stop.set()
        for process in load:
            process.join()
    assert {verdict.kind for verdict in below.verdicts} == {PASSED}
    assert {verdict.kind for verdict in above.verdicts} == {VerdictKind.TIME_LIMIT}


def _settled(others: set[int]) -> set[int]:
    """The processes of one idle sandbox: two of bubblewrap and the zygote; a compiler that still ends is waited for."""
    deadline = time.monotonic() + 30
    while len(own := set(descendants(os.getpid())) - others) > 3:
        assert time.monotonic() < deadline, f"{len(own)} processes remain"
        time.sleep(0.01)  # the kernel tells only its parent, the zygote
    return own


def _open_files(*pids: int) -> dict[int, int]:
    return {pid: len([*Path(f"/proc/{pid}/fd").iterdir()]) for pid in pids}


def test_many_tests_leave_descriptors_and_memory_flat():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    async def course() -> None:
        suite = TestSuite(tuple(map(str, range(500))), tuple(map(str, range(500))))
        others = set(descendants(os.getpid()))
        async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
            await judge.judge("print(input())", suite)
            pids = _settled(others)
            before = _open_files(os.getpid(), *pids), resident()
            for _ in range(3):
                assert (await judge.judge("print(input())", suite)).all_passed
            after = _open_files(os.getpid(), *pids), resident()
            assert after[0] == before[0]
            assert after[1] - before[1] < 20 * MIB

    asyncio.run(course())
