"""The judge behind Ray Serve: HTTP, handle, refusals, and replicas that are killed under load."""

# ruff: noqa: PTH208

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support import alive, belongs_here, descendants

from cobalt.judge import ExecResult, ServeJudge, VerdictKind
from cobalt.problems.problem import TestSuite
from cobalt.serving import serve_proxy
from cobalt.stage.errors import ServiceDown, UserError

pytestmark = [pytest.mark.services, pytest.mark.sandbox]

APP = "judge_test"
SQUARES = TestSuite(tuple(f"{n}\n" for n in range(6)), tuple(str(n * n) for n in range(6)))


BOUNDS = {"max_tests": "50", "max_run_seconds": "20", "max_request_bytes": str(80 << 20)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


METRICS_PORT = _free_port()


@pytest.fixture(scope="module")
def url():
    """The address of the app under test, on a Ray of its own."""
    ray = pytest.importorskip("ray")
    from ray import serve

    import remote_reward_server

    folder = tempfile.mkdtemp(prefix="rj")  # short: Ray puts sockets below it
    os.environ[serve_proxy.VARIABLE] = serve_proxy.CALLBACK  # read by Ray's processes
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        _temp_dir=folder,
        object_store_memory=100 << 20,
        _metrics_export_port=METRICS_PORT,
    )
    port = _free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    arguments = {"num_replicas": "2", "concurrency": "1", "cpu_seconds": "2", "log_level": "INFO"} | BOUNDS
    serve.run(remote_reward_server.app(arguments), name=APP, route_prefix=f"/{APP}")
    yield f"http://127.0.0.1:{port}/{APP}"
    del os.environ[serve_proxy.VARIABLE]
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


def _settled(value):
    """The value of `value()` once it has not changed for three seconds."""
    seen = [value()]
    while len(seen) < 7 or len(set(seen[-7:])) > 1:
        assert len(seen) < 200
        time.sleep(0.5)
        seen.append(value())
    return seen[-1]


def _wait_for(condition, seconds: float = 60.0):
    """Poll, because Serve writes its log and Ray its metrics with a delay; returns what `condition` found."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.5)
    raise AssertionError("it did not come about in time")


def test_a_judged_program_is_a_json_line_in_serves_log(url):
    import ray

    _post(url, {"code": "print(int(input()) % 2)", "test_cases": SQUARES.to_json()})
    logs = Path(ray._private.worker._global_node.get_logs_dir_path()) / "serve"

    def lines():
        texts = [line for path in logs.glob("replica*Evaluator*") for line in path.read_text().splitlines()]
        return [item for item in map(json.loads, texts) if item["message"] == "judged" and item["tests"] == 6]

    kinds = [item["verdicts"] for item in _wait_for(lines)]
    assert {"passed": 2, "wrong_answer": 4} in kinds
    assert all(item["run_seconds"] >= 0 <= item["queue_seconds"] for item in lines())


def test_prometheus_sees_verdicts_and_both_times(url):
    _post(url, {"code": "print(0)", "test_cases": SQUARES.to_json()})

    def scrape():
        text = httpx.get(f"http://127.0.0.1:{METRICS_PORT}/metrics").text
        names = ("verdicts", "queue_seconds", "run_seconds", "sandbox_restarts")
        return text if all(f"cobalt_judge_{name}" in text for name in names) else None

    text = _wait_for(scrape)
    assert re.search(r'cobalt_judge_verdicts\w*{[^}]*kind="wrong_answer"', text)


def test_stopping_early_is_part_of_the_wire_format(url):
    payload = {"code": "print(1)", "test_cases": SQUARES.to_record(), "stop_at_first_failure": True}
    kinds = [verdict["kind"] for verdict in _post(url, payload).json()["verdicts"]]
    assert kinds == ["wrong_answer"] + ["not_run"] * 5


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not valid JSON"),
        (b"\xff", 400, "not UTF-8"),
        (b"[" * 200_000, 400, "nested too deeply"),
        (b'{"code": "\\ud800"}', 400, "not Unicode text"),
        (b'{"code": "", "test_cases": {"inputs": [], "outputs": []}}', 422, "empty"),
        (b"[]", 422, "JSON object"),
        (b"{}", 422, "'code'"),
        (b'{"code": "", "test_cases": {"inputs": ["1"], "outputs": []}}', 422, "1 inputs but 0 outputs"),
    ],
)
def test_a_bad_request_is_answered_with_its_reason(url, body, status, words):
    answer = httpx.post(url, content=body, timeout=60)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_web_pages_proxies_and_oversized_bodies_are_refused_before_they_are_read(url):
    good = {"code": "print(1)", "test_cases": SQUARES.to_record()}
    for route in (url, f"{url}/run_code"):
        for headers in ({"Origin": "http://example.org"}, {"Sec-Fetch-Site": "cross-site"}, {"X-Forwarded-For": "::2"}):
            assert httpx.post(route, json=good, headers=headers, timeout=60).status_code == 403
        text = {"Origin": "http://example.org", "Content-Type": "text/plain"}
        assert httpx.post(route, content=json.dumps(good), headers=text, timeout=60).status_code == 403
        endless = (b" " * (1 << 20) for _ in range(81))
        assert httpx.post(route, content=endless, timeout=60).status_code == 413


def test_a_suite_of_too_many_tests_is_refused_over_http_and_over_the_handle(url):
    suite = TestSuite(("",) * 51, ("",) * 51)
    assert _post(url, {"code": "", "test_cases": suite.to_record()}).status_code == 422
    with pytest.raises(UserError):
        asyncio.run(ServeJudge(APP).judge("", suite))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"code": "\xed\xa0\x80"}', 400),
        (b'{"code": "", "stdin": "\\ud800"}', 400),
        ('{"code": ""}'.encode("utf-16"), 400),
        (b'{"code": "", "run_timeout": NaN}', 422),
        (b'{"code": "", "run_timeout": 1e999}', 422),
        (b'{"code": "", "run_timeout": 21}', 422),
        (b'{"code": ' + b"1" * 5000 + b"}", 422),
    ],
)
def test_malformed_bodies_are_client_errors_on_the_second_route(url, body, status):
    answer = httpx.post(f"{url}/run_code", content=body, timeout=60)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_only_post_is_judged(url):
    assert httpx.get(url, timeout=60).status_code == 405


def test_a_bad_request_over_the_handle_is_a_user_error_and_not_retried(url):
    from ray import serve
    from ray.exceptions import RayTaskError

    with pytest.raises(RayTaskError) as caught:
        serve.get_app_handle(APP).judge.remote({"code": 1}).result(timeout_s=60)
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
    assert capsys.readouterr().err.startswith("error: there is no setting 'cpus'; there are cpu_seconds, ")


def _replicas() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                title = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(f"ray::ServeReplica:{APP}:".encode()) and belongs_here(name):
                found.append(int(name))
    return found


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


def _all_below(roots: list[int]) -> set[int]:
    """The descendants of processes."""
    return {pid for root in roots for pid in descendants(root)}


def test_a_replica_that_dies_under_a_request_is_a_request_to_try_again(url):
    waiting = "import time\ntime.sleep(60)"
    requests = [
        (url, {"code": waiting, "test_cases": {"inputs": [""], "outputs": [""]}}, 503),
        (f"{url}/run_code", {"code": waiting, "language": "python", "run_timeout": 20}, 504),
    ]
    for route, payload, status in requests:
        _wait_for(lambda: len(_replicas()) == 2 and _post(url, {"code": "", "test_cases": SQUARES.to_record()}))
        idle = _settled(lambda: len(_all_below(_replicas())))  # a new replica examines its sandboxes first
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(_post, route, payload)
            _wait_for(lambda before=idle: len(_all_below(_replicas())) > before)
            for pid in _replicas():
                os.kill(pid, signal.SIGKILL)
            assert answer.result().status_code == status
    # What retries as it is told has its result.
    _wait_for(lambda: _post(url, {"code": "", "test_cases": SQUARES.to_record()}).status_code == 200)


def test_the_sandboxes_of_a_killed_replica_end_with_it(url):
    deadline = time.monotonic() + 60
    while len(_replicas()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    victim = _replicas()[0]
    sandboxes = descendants(victim)
    os.kill(victim, signal.SIGKILL)
    while any(alive(pid) for pid in sandboxes):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _run(url: str, **fields: object) -> dict:
    answer = _post(f"{url}/run_code", {"language": "python", **fields})
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
    from ray import serve
    from verl.utils.reward_score.sandbox_fusion import utils

    import remote_reward_server

    settings = {"num_replicas": "1", "concurrency": "2"}
    serve.run(remote_reward_server.app(settings), name="busy", route_prefix="/busy")
    route = url.replace(APP, "busy") + "/run_code"
    one = {"inputs": ["4"], "outputs": ["16"]}

    def check(code: str) -> tuple[list, list]:
        return utils.check_correctness(route, one, code, timeout=1)

    try:
        # They wait and do not compute, so that a busy machine makes them no longer: 15 s, where the client waits 12.
        with ThreadPoolExecutor(40) as pool:
            endless = [pool.submit(check, "import time\ntime.sleep(600)") for _ in range(30)]
            _wait_for(lambda: _connections(url) >= 30)
            right = [pool.submit(check, "print(int(input()) ** 2)") for _ in range(6)]
            assert [future.result()[0] for future in right] == [[True]] * 6
            assert {future.result()[0][0] for future in endless} <= {-3, -1}
    finally:
        serve.delete("busy")


def test_run_code_answers_in_sandbox_fusions_fields(url):
    answer = _run(url, code="import sys\nprint(input())\nsys.exit(3)", stdin="x")
    assert answer["status"] == "Failed"
    assert answer["compile_result"] is None
    assert answer["run_result"] | {"execution_time": 0} == {
        "status": "Finished",
        "execution_time": 0,
        "return_code": 3,
        "stdout": "x\n",
        "stderr": "",
    }
    assert _run(url, code="import time\ntime.sleep(60)", run_timeout=0.5)["run_result"]["status"] == "TimeLimitExceeded"
    starved = _run(url, code="a = bytearray(300 << 20)", memory_limit_MB=100)
    assert starved["status"] == "Failed"
    assert "MemoryError" in starved["run_result"]["stderr"]
    assert _run(url, code="a = bytearray(300 << 20)", memory_limit_MB=900)["status"] == "Success"


def test_run_code_offers_files_to_the_program_and_to_no_other(url):
    files = {"data/n.txt": base64.b64encode(b"41").decode(), "helper.py": base64.b64encode(b"ONE = 1").decode()}
    code = "from helper import ONE\nprint(int(open('data/n.txt').read()) + ONE)"
    assert _run(url, code=code, files=files)["run_result"]["stdout"] == "42\n"
    shadowing = {"heapq.py": base64.b64encode(b"HERE = 7").decode()}
    assert _run(url, code="import heapq\nprint(heapq.HERE)", files=shadowing)["run_result"]["stdout"] == "7\n"
    later = _run(url, code="import os\nprint(sorted(os.listdir()))")
    assert later["run_result"]["stdout"] == "['main.py']\n"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "'code'"),
        ({"code": "", "language": "cpp"}, "'language'"),
        ({"code": "", "fetch_files": ["x"]}, "'fetch_files'"),
        ({"code": "", "run_timeout": 0}, "'run_timeout'"),
        ({"code": "", "files": {"../x": ""}}, "'../x'"),
        ({"code": "", "files": {"/etc/x": ""}}, "'/etc/x'"),
        ({"code": "", "files": {"a": "", "a/b": ""}}, "below another file"),
        ({"code": "", "files": {"main.py": ""}}, "main.py"),
        ({"code": "", "files": {"x": "%"}}, "base64"),
        ({"code": "", "files": {"x": "A" * (70 << 20)}}, "'files'"),
    ],
)
def test_run_code_refuses_what_it_does_not_cover_by_name(url, fields, words):
    answer = _post(f"{url}/run_code", {"language": "python", **fields})
    assert answer.status_code == 422
    assert words in answer.json()["error"]
