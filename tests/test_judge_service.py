"""The judge's app in a process of its own, under uvicorn: HTTP, refusals, and hosts that are killed under load."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest
from support import ROOT, alive, descendants

from cobalt.judge import ExecResult
from cobalt.judge.url_judge import UrlJudge
from cobalt.problems.problem import TestSuite
from cobalt.serving.children import started_servers, variables

pytestmark = [pytest.mark.services, pytest.mark.sandbox]

SQUARES = TestSuite(tuple(f"{n}\n" for n in range(6)), tuple(str(n * n) for n in range(6)))
BOUNDS = {"max_tests": "50", "max_request_bytes": str(80 << 20), "cpu_seconds": "2"}


@contextlib.contextmanager
def hosted(**settings):
    """A host of the app, as a process, and its URL."""
    command = [sys.executable, "-m", "cobalt.serving.host", "judge"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdin.write(json.dumps({"concurrency": "2"} | BOUNDS | settings) + "\n")
            process.stdin.flush()
            yield process, f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}/evaluator"
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


@pytest.fixture(scope="module")
def url():
    """The address of the app under test."""
    with hosted() as (_, address):
        yield address


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 422), (b'{"code": "", "test_cases": {"inputs": [], "outputs": []}}', 422)],
)
def test_a_bad_request_is_answered_with_its_reason(url, body, status):
    answer = httpx.post(url, content=body, timeout=60)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_web_pages_proxies_and_oversized_bodies_are_refused_before_they_are_read(url):
    for headers in ({"Origin": "http://example.org"}, {"X-Forwarded-For": "::2"}):
        assert httpx.post(url, json={}, headers=headers, timeout=60).status_code == 403
    endless = (b" " * (1 << 20) for _ in range(81))
    assert httpx.post(url, content=endless, timeout=60).status_code == 413


def test_a_host_that_is_killed_under_load_leaves_every_request_answered_correctly():
    right, wrong = "n = int(input())\nprint(n * n)", "n = int(input())\nprint(n * n if n < 3 else 0)"
    slow = "import time\ntime.sleep(0.02)\n"

    async def course(urls: list[str], victim: int) -> list[ExecResult]:
        async with UrlJudge(urls) as judge:
            tasks = [asyncio.create_task(judge.judge(slow + (wrong if n % 2 else right), SQUARES)) for n in range(40)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            os.kill(victim, signal.SIGKILL)
            return await asyncio.gather(*tasks)

    with hosted() as (victim, one), hosted() as (_, two):
        sandboxes = descendants(victim.pid)
        assert sandboxes
        results = asyncio.run(course([one, two], victim.pid))
        expected = [[True] * 6, [True] * 3 + [False] * 3]
        assert [result.passing for result in results] == [expected[n % 2] for n in range(40)]
        deadline = time.monotonic() + 60
        while any(alive(pid) for pid in sandboxes):
            assert time.monotonic() < deadline
            time.sleep(0.1)


async def test_more_than_eight_sandboxes_are_several_servers():
    with started_servers(judge={"concurrency": "9", "cpu_seconds": "2"}) as servers:
        urls = variables(servers)["COBALT_JUDGE_URL"].split()
        assert len(urls) == 2
        async with UrlJudge(urls) as judge:
            assert (await judge.describe())["cpu_seconds"] == 2.0
            results = await asyncio.gather(*(judge.judge("print(int(input()) ** 2)", SQUARES) for _ in range(4)))
    assert all(result.all_passed for result in results)
