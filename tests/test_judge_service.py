"""The judge behind Ray Serve: HTTP, handle, refusals, and replicas that are killed under load."""

# ruff: noqa: PTH208

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from cobalt.errors import ServiceDown, UserError
from cobalt.judge import ExecResult, ServeJudge, VerdictKind
from cobalt.problem import TestSuite

pytestmark = [pytest.mark.services, pytest.mark.sandbox]

APP = "judge_test"
SQUARES = TestSuite(tuple(f"{n}\n" for n in range(6)), tuple(str(n * n) for n in range(6)))


@pytest.fixture(scope="module")
def url():
    """The address of the app under test, on a Ray of its own."""
    ray = pytest.importorskip("ray")
    from ray import serve

    import remote_reward_server

    folder = tempfile.mkdtemp(prefix="rj")  # short: Ray puts sockets below it
    ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=folder, object_store_memory=100 << 20)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    arguments = {"num_replicas": "2", "concurrency": "1", "cpu_seconds": "2"}
    serve.run(remote_reward_server.app(arguments), name=APP, route_prefix=f"/{APP}")
    yield f"http://127.0.0.1:{port}/{APP}"
    serve.shutdown()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def _post(url: str, payload: object) -> httpx.Response:
    return httpx.post(url, json=payload, timeout=120)


def test_http_and_handle_give_the_same_result(url):
    code = "n = int(input())\nprint(n * n if n != 4 else 1 / 0)"
    by_http = ExecResult.from_record(_post(url, {"code": code, "test_cases": SQUARES.to_json()}).json())
    by_handle = asyncio.run(ServeJudge(APP).judge(code, SQUARES))
    assert by_http.passing == by_handle.passing == [n != 4 for n in range(6)]
    assert by_http.feedback == by_handle.feedback
    assert by_http.verdicts[4].kind is by_handle.verdicts[4].kind is VerdictKind.RUNTIME_ERROR
    assert by_http.isolated


def test_stopping_early_is_part_of_the_wire_format(url):
    payload = {"code": "print(1)", "test_cases": SQUARES.to_record(), "stop_at_first_failure": True}
    kinds = [verdict["kind"] for verdict in _post(url, payload).json()["verdicts"]]
    assert kinds == ["wrong_answer"] + ["not_run"] * 5


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not valid JSON"),
        (b"\xff", 400, "not valid JSON"),
        (b"[]", 422, "JSON object"),
        (b"{}", 422, "'code'"),
        (b'{"code": "", "test_cases": {"inputs": ["1"], "outputs": []}}', 422, "1 inputs but 0 outputs"),
    ],
)
def test_a_bad_request_is_answered_with_its_reason(url, body, status, words):
    answer = httpx.post(url, content=body, timeout=60)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_only_post_is_judged(url):
    assert httpx.get(url, timeout=60).status_code == 405


def test_a_bad_request_over_the_handle_is_a_user_error_and_not_retried(url):
    from ray import serve
    from ray.exceptions import RayTaskError

    with pytest.raises(RayTaskError) as caught:
        serve.get_app_handle(APP).remote({"code": 1}).result(timeout_s=60)
    assert isinstance(caught.value.cause, UserError)


def test_a_missing_app_says_how_to_start_it(url):
    command = "serve run remote_reward_server:app --name evaluator --route-prefix /evaluator"
    with pytest.raises(ServiceDown, match=command):
        asyncio.run(ServeJudge("no_such_app").judge("print(1)", SQUARES))


def test_without_bubblewrap_the_app_refuses_in_one_sentence(monkeypatch, capsys):
    import remote_reward_server

    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SystemExit):
        remote_reward_server.app({})
    said = capsys.readouterr().err
    assert said.startswith("error: bubblewrap is not installed")
    assert "apt-get install bubblewrap" in said


def test_an_unknown_setting_refuses_in_one_sentence(capsys):
    import remote_reward_server

    with pytest.raises(SystemExit):
        remote_reward_server.app({"cpus": "1"})
    assert capsys.readouterr().err.startswith("error: setting 'cpus'")


def _replicas() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                title = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(f"ray::ServeReplica:{APP}:".encode()):
                found.append(int(name))
    return found


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return parents


def test_replicas_killed_under_load_leave_every_request_answered_correctly(url):
    right, wrong = "n = int(input())\nprint(n * n)", "n = int(input())\nprint(n * n if n < 3 else 0)"
    slow = "import time\ntime.sleep(0.02)\n"

    async def course() -> list[ExecResult]:
        judge = ServeJudge(APP, attempts=30, longest_wait=5.0)
        tasks = [asyncio.create_task(judge.judge(slow + (wrong if n % 2 else right), SQUARES)) for n in range(80)]
        for _ in range(3):
            await asyncio.sleep(1.0)
            alive = _replicas()
            if alive:
                os.kill(alive[0], signal.SIGKILL)
        return await asyncio.gather(*tasks)

    results = asyncio.run(course())
    expected = [[True] * 6, [True] * 3 + [False] * 3]
    assert [result.passing for result in results] == [expected[n % 2] for n in range(80)]


def test_the_sandboxes_of_a_killed_replica_end_with_it(url):
    deadline = time.monotonic() + 60
    while len(_replicas()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    victim = _replicas()[0]
    parents = _parents()
    sandboxes = {pid for pid, parent in parents.items() if parent == victim}
    sandboxes |= {pid for pid, parent in parents.items() if parent in sandboxes}
    os.kill(victim, signal.SIGKILL)
    while any(Path(f"/proc/{pid}").exists() for pid in sandboxes):
        assert time.monotonic() < deadline
        time.sleep(0.1)
