"""The judge's app in a process of its own, under uvicorn: HTTP, refusals, and hosts that are killed under load."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support import ROOT, alive, descendants

from cobalt.judge import ExecResult
from cobalt.judge.url_judge import UrlJudge
from cobalt.problems.problem import TestSuite
from cobalt.serving.children import started_servers, variables

pytestmark = [pytest.mark.services, pytest.mark.sandbox]

SQUARES = TestSuite(tuple(f"{n}\n" for n in range(6)), tuple(str(n * n) for n in range(6)))
BOUNDS = {"max_tests": "50", "max_run_seconds": "20", "max_request_bytes": str(80 << 20), "cpu_seconds": "2"}


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
    ("route", "body", "status"),
    [("", b"{", 400), ("", b"[]", 422), ("/run_code", b"{", 400),
     ("/run_code", b'{"code": "", "run_timeout": 21}', 422),
     ("", b'{"code": "", "test_cases": {"inputs": [], "outputs": []}}', 422)],
)  # fmt: skip
def test_a_bad_request_is_answered_with_its_reason(url, route, body, status):
    answer = httpx.post(url + route, content=body, timeout=60)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_web_pages_proxies_and_oversized_bodies_are_refused_before_they_are_read(url):
    for route in (url, f"{url}/run_code"):
        for headers in ({"Origin": "http://example.org"}, {"X-Forwarded-For": "::2"}):
            assert httpx.post(route, json={}, headers=headers, timeout=60).status_code == 403
        endless = (b" " * (1 << 20) for _ in range(81))
        assert httpx.post(route, content=endless, timeout=60).status_code == 413


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


def test_the_speed_of_a_judge_behind_a_url_is_measured(url):
    command = [sys.executable, "-m", "cobalt.judge", "measure", "--programs", "3", "--tests", "2", "--judge_url", url]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout[:8]) == (0, "6 tests "), finished.stderr
    refused = subprocess.run([*command, "--concurrency", "2"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--judge_url" in refused.stderr


def _run(url: str, **fields: object) -> dict:
    answer = httpx.post(f"{url}/run_code", json={"language": "python", **fields}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_sandbox_fusions_own_client_in_verl_gets_the_judges_verdicts(url):
    """The client that veRL's sandbox reward uses, unchanged, pointed at this judge."""
    from verl.utils.reward_score.sandbox_fusion import utils

    tests = {"inputs": [f"{n}\n" for n in range(4)], "outputs": [str(n * n) for n in range(4)]}
    for code, expected, statuses in [
        ("n = int(input())\nprint(n * n)", [True] * 4, {"success"}),
        ("print(1)", [False, True, False, False], {"success", "wrong_answer"}),
        ("1 / 0", [-2] * 4, {"runtime_error"}),
        ("print(", [-2] * 4, {"runtime_error"}),
    ]:
        results, metadata = utils.check_correctness(f"{url}/run_code", tests, code, timeout=1)
        assert results == expected, metadata
        assert {item["status"] for item in metadata} == statuses
    # One, because the client itself waits only some seconds for an answer, whatever else the machine does.
    one = {"inputs": ["0"], "outputs": ["0"]}
    results, metadata = utils.check_correctness(f"{url}/run_code", one, "while True: pass", timeout=1)
    assert (results, metadata[0]["status"]) == ([-3], "timeout")
    by_name = {"fn_name": "add", "inputs": ["1\n2", '"a"\n"b"'], "outputs": ["3", "ab"]}
    assert utils.check_correctness(f"{url}/run_code", by_name, "def add(a, b):\n    return a + b")[0] == [True, True]


def _connections(url: str) -> int:
    """How many clients are connected to the server at `url`."""
    port = f":{httpx.URL(url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(local.endswith(port) and state == "01" for _, local, _, state, *_ in rows)


def test_right_programs_queued_after_endless_ones_do_not_fail_in_verls_client(url):
    """Two sandboxes, and more programs that never end before them than the client waits for."""
    from verl.utils.reward_score.sandbox_fusion import utils

    route = f"{url}/run_code"
    one = {"inputs": ["4"], "outputs": ["16"]}

    def check(code: str) -> tuple[list, list]:
        return utils.check_correctness(route, one, code, timeout=1)

    # They wait and do not compute, so that a busy machine makes them no longer: 15 s, where the client waits 12.
    with ThreadPoolExecutor(40) as pool:
        endless = [pool.submit(check, "import time\ntime.sleep(600)") for _ in range(30)]
        deadline = time.monotonic() + 60
        while _connections(url) < 30:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        right = [pool.submit(check, "print(int(input()) ** 2)") for _ in range(6)]
        assert [future.result()[0] for future in right] == [[True]] * 6
        assert {future.result()[0][0] for future in endless} <= {-3, -1}


def test_run_code_answers_in_sandbox_fusions_fields(url):
    answer = _run(url, code="import sys\nprint(input())\nsys.exit(3)", stdin="x")
    assert (answer["status"], answer["compile_result"]) == ("Failed", None)
    result = {"status": "Finished", "execution_time": 0, "return_code": 3, "stdout": "x\n", "stderr": ""}
    assert answer["run_result"] | {"execution_time": 0} == result
    assert _run(url, code="import time\ntime.sleep(60)", run_timeout=0.5)["run_result"]["status"] == "TimeLimitExceeded"
    starved = _run(url, code="a = bytearray(300 << 20)", memory_limit_MB=100)
    assert starved["status"] == "Failed" and "MemoryError" in starved["run_result"]["stderr"]
    assert _run(url, code="a = bytearray(300 << 20)", memory_limit_MB=900)["status"] == "Success"


def test_run_code_offers_files_to_the_program_and_to_no_other(url):
    files = {"data/n.txt": base64.b64encode(b"41").decode(), "helper.py": base64.b64encode(b"ONE = 1").decode()}
    code = "from helper import ONE\nprint(int(open('data/n.txt').read()) + ONE)"
    assert _run(url, code=code, files=files)["run_result"]["stdout"] == "42\n"
    shadowing = {"heapq.py": base64.b64encode(b"HERE = 7").decode()}
    assert _run(url, code="import heapq\nprint(heapq.HERE)", files=shadowing)["run_result"]["stdout"] == "7\n"
    later = _run(url, code="import os\nprint(sorted(os.listdir()))")
    assert later["run_result"]["stdout"] == "['main.py']\n"
