"""Ray clusters: a cluster started as documented asks every client for a token; the apps refuse one that does not."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from support import ROOT, alive, descendants

from cobalt.serving import cluster
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError

SCRIPT = ["bash", str(ROOT / "scripts/ray_cluster.sh")]
PAYLOAD = {"code": "print(1)", "test_cases": {"inputs": [""], "outputs": ["1"]}}


def test_a_token_file_is_readable_by_its_owner_only(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "new" / "token"))
    path = cluster.token_path()
    cluster.keep_token_private()
    assert not path.exists()
    cluster.keep_token_private(create=True)
    token = path.read_text()
    assert len(token) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)  # as Ray writes it
    cluster.keep_token_private(create=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == token


OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder for temporary files that everybody can write into, as /tmp is, and no variable that leads to a Ray."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    for name in ("TMPDIR", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_ray_keeps_its_files_in_a_folder_of_its_user_alone(shared, monkeypatch):
    folder = cluster.private_folder()
    assert folder.parent == shared
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cluster.private_folder() == folder
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    assert cluster.private_folder() == folder
    folder.chmod(0o755)
    monkeypatch.setenv("RAY_TMPDIR", str(shared))
    with pytest.raises(UserError, match=folder.name):
        cluster.private_folder()
    folder.rmdir()
    folder.symlink_to(shared)
    with pytest.raises(UserError, match=folder.name):
        cluster.private_folder()


@needs_root
def test_a_folder_for_ray_that_another_user_has_made_is_refused(shared):
    folder = cluster.private_folder()
    os.chown(folder, OTHER_USER, OTHER_USER)
    with pytest.raises(UserError, match="RAY_TMPDIR"):
        cluster.private_folder()


def started(folder: Path, address: str) -> Path:
    """The file by which `ray start` says which cluster it has started."""
    (folder / "ray").mkdir(exist_ok=True)
    path = folder / "ray" / "ray_current_cluster"
    path.write_text(address)
    return path


def test_a_cluster_is_looked_for_where_this_user_has_started_one(shared):
    started(shared, "192.0.2.1:6379")
    assert cluster.running_cluster() == "192.0.2.1:6379"
    started(cluster.private_folder(), "192.0.2.2:6379")
    assert cluster.running_cluster() == "192.0.2.2:6379"


@needs_root
def test_a_cluster_that_another_user_names_is_not_joined(shared, monkeypatch):
    os.chown(started(shared, "192.0.2.1:6379"), OTHER_USER, OTHER_USER)
    assert cluster.running_cluster() is None
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    assert cluster.running_cluster() == "192.0.2.1:6379"


@needs_root
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_cluster_of_another_user_is_joined_only_by_its_address(shared, monkeypatch, host):
    os.seteuid(OTHER_USER)
    try:
        listening = socket.create_server((host, 0))
    finally:
        os.seteuid(0)
    with listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        started(shared, address)  # the port has gone to another user since
        assert cluster.running_cluster() is None
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert cluster.running_cluster() == address


def test_without_a_running_cluster_the_cluster_to_be_started_decides(monkeypatch, shared, tmp_path):
    monkeypatch.setattr(cluster, "running_cluster", lambda: None)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert cluster.require_private(allow_open=False)
    assert Path(os.environ["RAY_TMPDIR"]) == shared / f"cobalt-ray-{os.getuid()}"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert not cluster.require_private(allow_open=True)
    with pytest.raises(UserError):
        cluster.require_private(allow_open=False)


def test_a_cluster_that_does_not_answer_counts_neither_as_open_nor_as_private():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(InfrastructureError):
            cluster.asks_for_token(f"127.0.0.1:{taken.getsockname()[1]}")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def flags() -> tuple[int, int, list[str]]:
    """The head's port, the dashboard's, and what else keeps a cluster out of the way of others on this machine."""
    head, dashboard, agent, client = free_ports(4)
    sizes = ["--num-cpus=2", "--object-store-memory=100000000"]
    ports = [f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    return head, dashboard, [*sizes, *ports, f"--ray-client-server-port={client}"]


def environment(home: Path, **values: str) -> dict[str, str]:
    """The environment of a user, without any variable that leads to a Ray."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "COBALT_"))}
    return kept | {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | values


def listening(pids: set[int]) -> set[str]:
    """The local addresses that processes listen at, in hexadecimal."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

SERVE = """
import json, sys
import ray
from ray import serve
import remote_reward_server
app = remote_reward_server.app(json.loads(sys.argv[2]))
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(app, name="evaluator", route_prefix="/evaluator")
print("up", flush=True)
sys.stdin.read()
"""
ASK = """
import asyncio, json
from cobalt.judge import ServeJudge
from cobalt.problems.problem import TestSuite
async def main():
    judge = ServeJudge()
    result = await judge.judge("print(1)", TestSuite(("",), ("1",)))
    print(json.dumps([result.to_record(), dict(await judge.describe())]))
asyncio.run(main())
"""


def run_python(code: str, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)


@pytest.mark.services
@pytest.mark.sandbox
def test_the_documented_cluster_asks_for_a_token_listens_on_loopback_and_needs_nothing_of_its_user(tmp_path):
    with tempfile.TemporaryDirectory(prefix="rc", ignore_cleanup_errors=True) as folder:
        port, dashboard, others = flags()
        env = environment(tmp_path, RAY_TMPDIR=folder)  # where Ray says which cluster this machine uses
        started = subprocess.run(
            [*SCRIPT, "start", "--port", str(port), *others], env=env, capture_output=True, text=True, timeout=200
        )
        assert started.returncode == 0, started.stderr
        (pid_file,) = (tmp_path / ".ray").glob("cobalt_cluster.*.pid")
        supervisor = int(pid_file.read_text())
        processes = {supervisor, *descendants(supervisor)}
        try:
            assert (tmp_path / ".ray/auth_token").stat().st_mode & 0o777 == 0o600
            assert cluster.asks_for_token(f"127.0.0.1:{port}")
            assert listening(processes) <= LOOPBACK
            job = {"entrypoint": "true"}
            assert httpx.post(f"http://127.0.0.1:{dashboard}/api/jobs/", json=job, timeout=60).status_code == 401
            assert subprocess.run([*SCRIPT, "start"], env=env, capture_output=True).returncode == 2
            (http,) = free_ports(1)
            server = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(http), '{"concurrency": 1}'],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert any(line == "up\n" for line in server.stdout)
                answer = httpx.post(f"http://127.0.0.1:{http}/evaluator", json=PAYLOAD, timeout=60).json()
                assert (answer["passing"], answer["private"]) == ([True], True)
                asked = run_python(ASK, env)
                assert asked.returncode == 0, asked.stderr[-2000:]
                assert "private" not in json.loads(asked.stdout.splitlines()[-1])[1]
            finally:
                server.communicate(timeout=60)
        finally:
            stopped = subprocess.run([*SCRIPT, "stop"], env=env, capture_output=True, text=True, timeout=100)
        assert stopped.returncode == 0, stopped.stderr
        assert not [pid for pid in processes if alive(pid)]
        assert not (Path(folder) / "ray/ray_current_cluster").exists()
        assert subprocess.run([*SCRIPT, "stop"], env=env, capture_output=True).returncode == 2


@pytest.fixture(scope="module")
def cluster_with_gpus(tmp_path_factory):
    """A cluster that asks for a token and counts four GPUs, and its user's environment, without RAY_AUTH_MODE."""
    home = tmp_path_factory.mktemp("home")
    with tempfile.TemporaryDirectory(prefix="rc", ignore_cleanup_errors=True) as folder:
        port, _, others = flags()
        env = environment(home, RAY_TMPDIR=folder)
        command = [*SCRIPT, "start", "--port", str(port), *others, "--num-gpus=4"]
        started = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
        assert started.returncode == 0, started.stderr
        try:
            # As with `ray start` on another machine: only RAY_ADDRESS leads there.
            yield environment(home, RAY_ADDRESS=f"127.0.0.1:{port}", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
        finally:
            subprocess.run([*SCRIPT, "stop"], env=env, check=True, capture_output=True, timeout=100)


BUILD = """
import sys
from cobalt.serving import cluster
from cobalt.serving.vllm_service import build
cluster.bring_token(cluster.running_cluster())
app = build({"model": sys.argv[1], "num_replicas": "2", "tensor_parallel_size": "2"})
print("built for GPUs:", app._bound_deployment.init_args[1])
"""

JOIN = """
import os
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.training import machine
from cobalt.training.launch import _judge_on_cluster
class Joined(Exception): pass
def joined(*arguments): raise Joined
machine.check_cluster = joined
try:
    with _judge_on_cluster(None): pass
except (InfrastructureError, UserError) as error:
    print(type(error).__name__, error)
except Joined:
    print("joined", os.environ["RAY_AUTH_MODE"])
"""


@pytest.mark.services
@pytest.mark.timeout(400)
def test_training_sends_the_token_by_itself_and_without_it_says_at_once_what_is_missing(cluster_with_gpus, tmp_path):
    joined = run_python(JOIN, cluster_with_gpus)
    assert joined.stdout.splitlines()[-1] == "joined token", joined.stderr[-2000:]
    began = time.monotonic()
    refused = run_python(JOIN, cluster_with_gpus | {"HOME": str(tmp_path)})
    assert refused.stdout.startswith("UserError") and "auth_token" in refused.stdout, refused.stderr[-2000:]
    assert time.monotonic() - began < 60
    began = time.monotonic()
    (port,) = free_ports(1)
    nobody = run_python(JOIN, cluster_with_gpus | {"RAY_ADDRESS": f"127.0.0.1:{port}"})
    assert nobody.stdout.startswith("ServiceDown"), nobody.stderr[-2000:]
    assert time.monotonic() - began < 60


@pytest.mark.services
@pytest.mark.timeout(300)
def test_an_engine_with_more_gpus_than_the_cluster_has_is_refused_before_it_waits(cluster_with_gpus, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    settings = [f"model={tmp_path}", "num_replicas=3", "tensor_parallel_size=2"]
    refused = subprocess.run(
        ["serve", "run", "vllm_engine_actor:app", *settings],
        cwd=ROOT,
        env=cluster_with_gpus,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert refused.returncode == 2, refused.stderr[-2000:]
    assert "needs 6 GPUs" in refused.stderr
    assert "Traceback" not in refused.stderr
    built = run_python(BUILD, cluster_with_gpus, str(tmp_path))
    assert built.stdout.splitlines()[-1] == "built for GPUs: True", built.stderr[-2000:]


@pytest.mark.parametrize(
    ("replicas", "parallel", "nodes", "fits"),
    [
        (2, 2, [4], True),
        (3, 2, [4], False),
        (1, 4, [2, 2], False),  # an engine's GPUs are on one node
        (2, 2, [3, 3], True),
        (3, 2, [3, 3], False),
        (1, 1, [], False),
        (1, 1, [0, 1], True),
    ],
)
def test_the_gpus_of_an_engine_are_counted_by_node(replicas, parallel, nodes, fits):
    from cobalt.serving.vllm_service import check_gpus

    if fits:
        check_gpus(replicas, parallel, nodes)
    else:
        with pytest.raises(UserError, match="tensor_parallel_size"):
            check_gpus(replicas, parallel, nodes)


@pytest.fixture(scope="module")
def open_cluster(tmp_path_factory):
    """A Ray without a token, on loopback; yields the environment that leads to it."""
    home = tmp_path_factory.mktemp("home")
    with tempfile.TemporaryDirectory(prefix="ro", ignore_cleanup_errors=True) as folder:
        port, _, others = flags()
        env = environment(
            home,
            RAY_TMPDIR=folder,
            RAY_ADDRESS=f"127.0.0.1:{port}",
            RAY_AUTH_MODE="disabled",
            RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
            RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0",  # there is no other node to take over what runs here
        )
        command = ["ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", *others]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert any("Ray runtime started" in line for line in process.stdout)
            yield env
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


@pytest.mark.services
@pytest.mark.parametrize(
    "app", ["remote_reward_server:app", "vllm_engine_actor:app model=none/none"], ids=["judge", "engine"]
)
def test_an_open_cluster_is_refused_in_one_sentence_with_exit_code_2(open_cluster, app):
    refused = subprocess.run(
        ["serve", "run", *app.split()], cwd=ROOT, env=open_cluster, capture_output=True, text=True, timeout=200
    )
    assert refused.returncode == 2, refused.stderr[-2000:]
    assert "allow_open_cluster" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.services
@pytest.mark.sandbox
def test_a_replica_refuses_an_open_cluster_by_itself(open_cluster):
    deploy = """
from ray import serve
from cobalt.serving.judge_service import Evaluator
from cobalt.serving.judge_service_settings import ServiceSettings
serve.start(proxy_location="Disabled")
serve.run(serve.deployment(Evaluator).bind(ServiceSettings(concurrency=1)), name="direct", route_prefix=None)
"""
    refused = run_python(deploy, open_cluster)
    assert refused.returncode != 0
    assert "allow_open_cluster" in refused.stderr + refused.stdout


@pytest.mark.services
@pytest.mark.sandbox
def test_every_result_names_an_open_cluster_that_was_allowed(open_cluster):
    (http,) = free_ports(1)
    settings = json.dumps({"concurrency": 1, "allow_open_cluster": True})
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(http), settings],
        cwd=ROOT,
        env=open_cluster,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert any(line == "up\n" for line in server.stdout)
        asked = run_python(ASK, open_cluster)
        assert asked.returncode == 0, asked.stderr[-2000:]
        result, described = json.loads(asked.stdout.splitlines()[-1])
        assert result["private"] is described["private"] is False
    finally:
        server.communicate(timeout=60)


def test_joining_says_what_is_missing_and_does_not_wait_for_ray_to_give_up(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "running_cluster", lambda any_local: None)
    with pytest.raises(ServiceDown, match=cluster.START_COMMAND):
        cluster.join()
    monkeypatch.setattr(cluster, "running_cluster", lambda any_local: "10.77.0.1:6379")
    monkeypatch.setattr(cluster, "asks_for_token", lambda address, token=None: True)
    for mode in ("disabled", "token"):
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
        with pytest.raises(UserError, match="auth_token"):
            cluster.join()
