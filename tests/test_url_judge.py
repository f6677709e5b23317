"""The judge over its kinds: in process, at a URL, in several processes. One contract, and what is a kind's own."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import httpx
import psutil
import pytest
from serving import Scripted, listening, served
from support import ROOT, FakeJudge, alive, descendants

from cobalt.judge import VerdictKind, open_judge
from cobalt.judge.opening import judge_urls
from cobalt.judge.processes import judging_processes, shares
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.url_judge import UrlJudge
from cobalt.judge.wire import JudgeRequest, Suites, UnknownSuite, digest_of, suite_bytes
from cobalt.problems.problem import TestSuite
from cobalt.serving import judge_app
from cobalt.serving.judge_app import JudgeService, judge_api
from cobalt.serving.services import started_servers, variables
from cobalt.serving.settings import ServiceSettings
from cobalt.stage.errors import InfrastructureError, UserError

TOKEN = "a-token-of-decent-length"
SQUARES = TestSuite(tuple(f"{n}\n" for n in range(6)), tuple(str(n * n) for n in range(6)))
SETTINGS = {"concurrency": 2, "cpu_seconds": 2.0}


@pytest.fixture(autouse=True)
def settings_examined(monkeypatch):
    """The settings whose isolation apps had examined; `test_judge_programs.py` has the examination, of two seconds."""
    seen = []

    async def examined(settings):
        seen.append(settings)

    monkeypatch.setattr(judge_app, "require_isolation", examined)
    return seen


@contextlib.asynccontextmanager
async def app(count=None, port=0, **settings):
    """The URL of the judge's app in this process; `count` gets each body's length and the answer's status."""
    settings = ServiceSettings.read({"concurrency": 1, "cpu_seconds": 2.0} | settings)
    api = judge_api(JudgeService(settings))
    if count is not None:

        @api.middleware("http")
        async def counted(request, call_next):
            response = await call_next(request)
            if request.method == "POST":
                count.append((int(request.headers["content-length"]), response.status_code))
            return response

    async with served(api, port) as url:
        yield url


@pytest.fixture(params=["in process", "url", pytest.param("processes", marks=pytest.mark.services), "fake"])
async def judge(request):
    """A judge of each kind, with the same settings."""
    if request.param == "in process":
        async with open_judge(settings=SETTINGS) as judge:
            yield judge
    elif request.param == "url":
        async with app() as url, open_judge([url]) as judge:
            yield judge
    elif request.param == "processes":
        async with judging_processes(JudgeSettings(**SETTINGS)) as judge:
            yield judge
    else:  # which tests of other parts use
        known = {"print(1)": [n == 1 for n in range(6)]} | {code: right or [True] for code, _, right in CASES.values()}
        yield FakeJudge(lambda code, _: known.get(code, [True] * 3))


ADDS = TestSuite(("1\n2", '"a"\n"b"'), ("3", '"ab"'), fn_name="add")
CASES = {
    "right": ("print(int(input()) ** 2)", SQUARES, [True] * 6),
    "one wrong": ("n = int(input())\nprint(n * n if n != 4 else 1 / 0)", SQUARES, [n != 4 for n in range(6)]),
    "no program": ("print(", SQUARES, [False] * 6),
    "a function": ("def add(a, b):\n    return a + b", ADDS, [True, True]),
    "assertions": (
        "def f(x):\n    return x + 1",
        TestSuite(("f(1)",), ("assert f(1) == 2",), fn_name="f", asserts=True),
        None,
    ),
    "a prelude": ("print(helper())", TestSuite(("",), ("7",), prelude="def helper(): return 7"), [True]),
    "a comparison": ("print(0.1 + 0.2)", TestSuite(("",), ("0.3",), comparison="float"), [True]),
    "half a surrogate": ("print('\ud800' == '?')", TestSuite(("",), ("True",)), [True]),
}


@pytest.mark.sandbox
async def test_every_kind_gives_the_same_verdicts_and_description(judge):
    assert isinstance(judge, FakeJudge) or await judge.describe() == JudgeSettings(**SETTINGS).decisive()
    async with open_judge(settings=SETTINGS) as other:
        for name, (code, suite, expected) in CASES.items():
            result, reference = await judge.judge(code, suite), await other.judge(code, suite)
            if expected is not None:
                assert result.passing == expected, name
            assert result.passing == reference.passing, name
            kinds, same = ([verdict.kind for verdict in one.verdicts] for one in (result, reference))
            assert kinds == same or (isinstance(judge, FakeJudge) and len(kinds) == len(same)), name
            assert (result.isolated, result.private) == (True, True)
        stopped = await judge.judge("print(1)", SQUARES, stop_at_first_failure=True)
    assert [verdict.kind for verdict in stopped.verdicts] == [VerdictKind.WRONG_ANSWER] + [VerdictKind.NOT_RUN] * 5


@pytest.mark.sandbox
async def test_programs_at_a_time_are_each_judged_by_their_own_tests(judge):
    suites = [TestSuite((f"{n}\n",) * 3, (str(n),) * 3) for n in range(20)]
    results = await asyncio.gather(*(judge.judge("print(input())", suite) for suite in suites for _ in range(2)))
    assert all(result.passing == [True] * 3 for result in results)


@pytest.mark.sandbox
async def test_nothing_starts_before_the_first_program():
    before = len(descendants(os.getpid()))
    async with open_judge(settings={"concurrency": 9}) as judge:
        await judge.describe()
        assert len(descendants(os.getpid())) == before


@pytest.mark.sandbox
async def test_a_suite_travels_once_and_again_where_it_was_forgotten():
    large = TestSuite(("x" * 50_000,), ("50000",))
    bodies = []
    async with app(bodies) as url, open_judge([url]) as judge:
        for _ in range(3):
            assert (await judge.judge("print(len(input()))", large)).all_passed
        assert [size > 50_000 for size, _ in bodies] == [True, False, False]
        port = int(url.rpartition(":")[2])
    async with UrlJudge([f"http://127.0.0.1:{port}"]) as judge:
        for restarts in range(2):
            bodies.clear()
            async with app(bodies, port):
                assert (await judge.judge("print(len(input()))", large)).all_passed
            assert [status for _, status in bodies] == ([200] if restarts == 0 else [409, 200])


@pytest.mark.sandbox
async def test_each_server_gets_a_suite_once():
    one, two = [], []
    async with app(one) as first, app(two) as second, UrlJudge([first, second]) as judge:
        programs = [judge.judge("import time\ntime.sleep(0.2)\nprint(int(input()) ** 2)", SQUARES) for _ in range(2)]
        await asyncio.gather(*programs)
        assert [len(one), len(two)] == [1, 1]
        await asyncio.gather(*(judge.judge(f"print(int(input()) ** 2)  # {n}", SQUARES) for n in range(6)))
    assert {status for _, status in one + two} == {200}
    assert len(one) + len(two) == 8


def test_the_server_computes_digests_and_keeps_a_bounded_number_of_bytes():
    suites = Suites(most_bytes=10_000)
    mine = TestSuite(("1",), ("1",))

    def sent(*inputs, outputs=("",)):
        JudgeRequest.parse({"code": "", "test_cases": {"inputs": inputs, "outputs": outputs}}, suites=suites)

    def named():
        return JudgeRequest.parse({"code": "", "suite": digest_of(suite_bytes(mine))}, suites=suites).suite

    sent("1", outputs=("2",))
    with pytest.raises(UnknownSuite):
        named()
    sent("1", outputs=("1",))
    assert named() == mine
    for n in range(100):
        sent("x" * 500 + str(n))
    with pytest.raises(UnknownSuite):
        named()
    sent("x" * 20_000)


@pytest.mark.parametrize(
    "change", [{"fn_name": "f"}, {"prelude": "import math"}, {"comparison": "float"}, {"top_level_return": True}]
)
def test_all_that_decides_a_verdict_decides_the_digest(change):
    plain = {"inputs": ("1",), "outputs": ("1",)}
    digests = {digest_of(suite_bytes(TestSuite(**fields))) for fields in (plain, plain | change)}
    assert len(digests) == 2
    record = TestSuite(**plain, **change).to_record()
    parsed = JudgeRequest.parse({"code": "", "test_cases": json.loads(json.dumps(record))}).suite
    assert suite_bytes(parsed) == suite_bytes(TestSuite(**plain, **change))


@pytest.mark.sandbox
async def test_refusals_of_the_app_end_the_run_in_its_words(monkeypatch):
    async with app(token=TOKEN, max_request_bytes=10_000, max_tests=10) as url:
        async with open_judge([url]) as judge:
            with pytest.raises(UserError, match="token"):
                await judge.describe()
            with pytest.raises(UserError, match="token"):
                await judge.judge("print(1)", SQUARES)
        monkeypatch.setenv("COBALT_JUDGE_TOKEN", TOKEN)
        async with open_judge([url]) as judge:
            assert (await judge.judge("print(int(input()) ** 2)", SQUARES)).all_passed
            with pytest.raises(UserError, match="max_request_bytes"):
                await judge.judge("print(1)", TestSuite(("x" * 20_000,), ("",)))
            with pytest.raises(UserError, match="max_tests"):
                await judge.judge("print(1)", TestSuite(("",) * 11, ("",) * 11))


async def test_an_answer_that_is_no_result_is_a_failure_of_the_server():
    async with served(Scripted()) as url, UrlJudge([url]) as judge:
        with pytest.raises(InfrastructureError):
            await judge.judge("print(1)", SQUARES)


async def test_settings_are_for_a_judge_in_the_process():
    for settings in (["comparison=float"], {"comparison": "float"}):
        with pytest.raises(UserError, match="comparison"):
            async with open_judge(["http://127.0.0.1:9"], settings):
                pass
        async with open_judge([], settings) as judge:
            assert (await judge.describe())["comparison"] == "float"
    with pytest.raises(UserError, match="no_such"):
        async with open_judge([], ["no_such=1"]):
            pass


def test_the_flag_goes_before_the_variables(monkeypatch):
    assert judge_urls() == []
    monkeypatch.setenv("COBALT_HTTP", "http://h:1/")
    assert judge_urls() == ["http://h:1/evaluator"]
    monkeypatch.setenv("COBALT_JUDGE_URL", "http://a http://b")
    assert judge_urls() == ["http://a", "http://b"]
    assert judge_urls(["http://c"]) == ["http://c"]


@pytest.mark.sandbox
async def test_an_app_has_isolation_examined_under_its_settings_before_it_answers(settings_examined):
    async with app(cpu_seconds=3.0):
        assert [settings.cpu_seconds for settings in settings_examined] == [3.0]


async def test_metrics_and_description_are_guarded_and_health_tells_nothing():
    api = judge_api(JudgeService(ServiceSettings.read({"token": TOKEN})))
    transport = httpx.ASGITransport(api, client=("192.0.2.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert [(await client.get(path)).status_code for path in ("/metrics", "/describe")] == [401, 401]
        assert (await client.get("/health")).json() == {"status": "ok"}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/describe", headers=headers)).json()["cpu_seconds"] == 4.0
        assert b"cobalt_judge_sandbox_restarts 0.0" in (await client.get("/metrics", headers=headers)).content


@pytest.mark.parametrize(
    ("sandboxes", "expected"), [(1, [1]), (8, [8]), (9, [5, 4]), (16, [8, 8]), (17, [6, 6, 5]), (64, [8] * 8)]
)
def test_more_than_eight_sandboxes_are_spread_over_processes(sandboxes, expected):
    assert shares(sandboxes) == expected


SPREAD = """
import asyncio, os, sys
from cobalt.judge import open_judge
from cobalt.problems.problem import TestSuite
async def main():
    async with open_judge(settings={"concurrency": 9}) as judge:
        waits = judge.judge("import time\\ntime.sleep(300)", TestSuite(("",), ("",)))
        await asyncio.gather(*(judge.judge("print(1)", TestSuite(("",), ("1",))) for _ in range(18)))
        print("judged", flush=True)
        if sys.argv[1] == "waits":
            await waits
        waits.close()
asyncio.run(main())
"""


def assert_all_end(processes):
    deadline = time.monotonic() + 60
    while any(map(alive, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.services
@pytest.mark.sandbox
@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_two_processes_judge_and_end_with_their_parent_however_it_ends(tmp_path, end):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", SPREAD, "waits" if end else "ends"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout.readline() == "judged\n"
            processes = descendants(parent.pid)
            if end is not None:
                assert len(psutil.Process(parent.pid).children()) == 2
                (folder,) = tmp_path.glob("cobalt-judge-*")
                assert folder.stat().st_mode & 0o777 == 0o700
                assert not listening(processes)
                parent.send_signal(end)
            assert parent.wait(60) == (-end if end else 0)
        finally:
            parent.kill()
    assert_all_end(processes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.services
@pytest.mark.sandbox
async def test_more_than_eight_sandboxes_are_several_servers_and_one_that_is_killed_leaves_every_request_answered():
    right, wrong = "n = int(input())\nprint(n * n)", "n = int(input())\nprint(n * n if n < 3 else 0)"
    slow = "import time\ntime.sleep(0.02)\n"
    before = {*psutil.Process().children()}
    with started_servers(judge={"concurrency": "9", "cpu_seconds": "2"}) as servers:
        victim, _ = {*psutil.Process().children()} - before
        sandboxes = descendants(victim.pid)
        urls = variables(servers)["COBALT_JUDGE_URL"].split()
        assert sandboxes and len(urls) == 2
        async with UrlJudge(urls) as judge:
            assert (await judge.describe())["cpu_seconds"] == 2.0
            tasks = [asyncio.create_task(judge.judge(slow + (wrong if n % 2 else right), SQUARES)) for n in range(40)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            victim.kill()
            results = await asyncio.gather(*tasks)
    expected = [[True] * 6, [True] * 3 + [False] * 3]
    assert [result.passing for result in results] == [expected[n % 2] for n in range(40)]
    assert_all_end(sandboxes)
