"""Ray clusters: the documented one asks for a token and hosts the two apps; an open one is refused."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import LOOPBACK, free_ports, listening
from support import ROOT, alive, descendants

from cobalt.engine.model_name import fingerprint, model_name
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.serving import nodes
from cobalt.stage.errors import ServiceDown, UserError
from cobalt.training import cluster

SCRIPT = ["bash", str(ROOT / "scripts/ray_cluster.sh")]
JUDGE = ["remote_reward_server:app", "--name", "evaluator", "--route-prefix", "/evaluator", "concurrency=1"]
ENGINE = ["vllm_engine_actor:app", "--name", "vllm_actor", "--route-prefix", "/vllm_actor"]


def test_a_token_file_is_readable_by_its_owner_only(tmp_path, monkeypatch):
    path = tmp_path / "new" / "token"
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    cluster.keep_token_private()
    assert not path.exists()
    tokens = set()
    for _ in range(2):
        cluster.keep_token_private(create=True)
        assert path.stat().st_mode & 0o777 == 0o600
        tokens.add(path.read_text())
        path.chmod(0o644)  # as Ray writes it
    assert [len(token) for token in tokens] == [64]


@pytest.mark.parametrize("address", ["", "6379", "host:", "host:0", "host:70000", "ray://host:1", "http://host:1"])
def test_what_is_not_an_address_is_refused(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match="RAY_ADDRESS"):
        nodes.join()


def test_where_nothing_answers_the_message_says_how_to_start_a_cluster():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ServiceDown, match=cluster.START_COMMAND):
            cluster.prepare_to_join(f"127.0.0.1:{taken.getsockname()[1]}")


def flags() -> tuple[int, int, list[str]]:
    """The head's port, the dashboard's, and what else keeps a cluster out of the way of others on this machine."""
    head, dashboard, agent, client = free_ports(4)
    sizes = ["--num-cpus=2", "--object-store-memory=100000000"]
    ports = [f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    return head, dashboard, [*sizes, *ports, f"--ray-client-server-port={client}"]


def environment(home: Path, **values: str) -> dict[str, str]:
    """The environment of a user, without any variable that leads to a Ray."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "COBALT_"))}
    inherited["RAY_worker_niceness"] = "0"  # with Ray's low priority they would get almost no time beside another test
    return inherited | {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | values


def run(env: dict[str, str], *command: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def succeed(env: dict[str, str], *command: str) -> str:
    finished = run(env, *command)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def refuse(env: dict[str, str], *command: str) -> str:
    """Message of a command that ends with one sentence and exit code 2."""
    finished = run(env, *command)
    assert finished.returncode == 2 and "Traceback" not in finished.stderr, finished.stderr[-3000:]
    return finished.stderr


ASK = """
import asyncio, json, ray
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt_verl.judging import ServeJudge
ray.init()
async def main():
    judge = ServeJudge("evaluator", attempts=2)
    result = await judge.judge("print(1)", TestSuite(("",), ("1",)))
    try:
        await judge.judge("print(1)", TestSuite((), ()))
    except UserError as error:
        refused = str(error)
    print(json.dumps([result.to_record(), dict(await judge.describe()), refused]))
asyncio.run(main())
"""


def ask(env: dict[str, str]) -> tuple[dict, dict, str]:
    """Answers of the judge over its deployment handle: a result, its description, and the refusal of no tests."""
    result, description, refused = json.loads(succeed(env, sys.executable, "-c", ASK).splitlines()[-1])
    return result, description, refused


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The documented cluster; yields its user's environment and the dashboard's port, and stops it."""
    home = tmp_path_factory.mktemp("home")
    with tempfile.TemporaryDirectory(prefix="rc", ignore_cleanup_errors=True) as folder:
        port, dashboard, others = flags()
        env = environment(home, RAY_TMPDIR=folder)
        said = succeed(env, *SCRIPT, "start", "--port", str(port), *others)
        variables = dict(item.split("=") for item in said.split("export ")[1].split())
        (pid_file,) = (home / ".ray").glob("cobalt_cluster.*.pid")
        supervisor = int(pid_file.read_text())
        processes = {supervisor, *descendants(supervisor)}
        try:
            yield env | variables, dashboard, processes
        finally:
            succeed(env, *SCRIPT, "stop")
        assert not [pid for pid in processes if alive(pid)]
        assert not (Path(folder) / "ray/ray_current_cluster").exists()
        assert run(env, *SCRIPT, "stop").returncode == 2


@pytest.mark.services
@pytest.mark.timeout(300)
def test_the_documented_cluster_asks_for_a_token_listens_on_loopback_and_takes_no_port_of_others(started, tmp_path):
    env, dashboard, processes = started
    assert Path(env["HOME"], ".ray/auth_token").stat().st_mode & 0o777 == 0o600
    assert cluster.asks_for_token(env["RAY_ADDRESS"])
    assert listening(processes) <= LOOPBACK
    job = {"entrypoint": "true"}
    assert httpx.post(f"http://127.0.0.1:{dashboard}/api/jobs/", json=job, timeout=60).status_code == 401
    assert "auth_token" in refuse(env | {"HOME": str(tmp_path)}, "serve", "run", *JUDGE)
    without = {name: value for name, value in env.items() if name != "RAY_AUTH_MODE"}
    assert "RAY_AUTH_MODE=token" in refuse(without, "serve", "run", *JUDGE)
    assert run(env, *SCRIPT, "start").returncode == 2
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # some other program has it already
            other.bind(("127.0.0.1", 8000))
            other.listen()
        assert "8000" in refuse(env, "serve", "run", *JUDGE)


@pytest.mark.services
@pytest.mark.sandbox
@pytest.mark.timeout(400)
def test_serve_hosts_the_same_apps_that_run_in_process(started, seed_model):
    env, _, _ = started
    assert "GPUs" in refuse(env, "serve", "run", *ENGINE, f"model={seed_model}", "device=gpu")
    (port,) = free_ports(1)
    succeed(env, "serve", "start", "--http-host", "127.0.0.1", "--http-port", str(port))
    settings = [f"model={seed_model}", "max_model_len=1024", "dtype=float32"]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda app: succeed(env, "serve", "run", "--non-blocking", *app), (JUDGE, [*ENGINE, *settings])))
    base = f"http://127.0.0.1:{port}"
    in_process = dict(asyncio.run(LocalJudge(JudgeSettings()).describe()))
    assert httpx.get(f"{base}/evaluator/describe", timeout=60).json() == in_process
    program = {"code": "print(1)", "test_cases": {"inputs": [""], "outputs": ["1"]}}
    answer = httpx.post(f"{base}/evaluator", json=program, timeout=60).json()
    assert (answer["passing"], answer["private"]) == ([True], True)
    result, description, refused = ask(env)
    assert (result["passing"], description) == ([True], in_process)
    assert "test_cases" in refused
    assert httpx.get(f"{base}/vllm_actor/describe", timeout=60).json() == {
        "model": seed_model.name,
        "fingerprint": fingerprint(seed_model),
        "name": model_name(str(seed_model)),
        "dtype": "float32",
        "seed": 0,
        "max_model_len": 1024,
        "device": "cpu",
    }
    body = {"messages": [{"role": "user", "content": "1 2 3"}], "max_tokens": 4, "n": 2}
    assert len(httpx.post(f"{base}/vllm_actor", json=body, timeout=120).json()["responses"]) == 2
    for app in ("evaluator", "vllm_actor"):
        assert httpx.get(f"{base}/{app}/health", timeout=60).status_code == 200
        assert "cobalt_" in httpx.get(f"{base}/{app}/metrics", timeout=60).text
