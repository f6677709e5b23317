"""The private Ray of a training run, apart from a Ray that is open to all; and that the apps refuse such a Ray."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from serving import LOOPBACK, listening
from support import ROOT, alive
from test_cluster import ENGINE, JUDGE, ask, environment, flags, refuse, run, succeed

from cobalt.training.private_ray import IMPORT_ENVIRONMENT

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

START = """
import json, os, sys
from cobalt.stage.cli import run_script
from cobalt.training.cluster import asks_for_token
from cobalt.training.private_ray import private_ray
from cobalt.training.ray_watcher import VARIABLE
from dataclasses import dataclass
import subprocess
@dataclass
class Arguments: pass
def main(_):
    before = dict(os.environ)
    with private_ray(num_cpus=2, num_gpus=1, object_store_memory=10**8) as variables:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        address = variables["RAY_ADDRESS"]
        print(json.dumps({
            "address": address,
            "folder": os.environ[VARIABLE],
            "child": child.pid,
            "open": not asks_for_token(address),
            "wrong": not asks_for_token(address, "0123456789abcdef0123456789abcdef"),
        }), flush=True)
        sys.stdin.read()
        child.kill()
        child.wait()
    print(json.dumps(sorted(name for name in before | os.environ if before.get(name) != os.environ.get(name))))
    return 0
run_script(Arguments, main)
"""


class Private:
    """A process with a private Ray."""

    def __init__(self, env):
        self.process = subprocess.Popen(
            [sys.executable, "-c", START],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.facts = json.loads(self.process.stdout.readline() or self.process.communicate()[1])
        self.folder = Path(self.facts["folder"])

    def processes(self):
        """Those of its Ray, by name."""
        every = {one.pid: one.info for one in psutil.process_iter(["name", "cmdline"])}
        lines = {pid: " ".join(info["cmdline"] or ()) for pid, info in every.items()}
        own = [pid for pid, line in lines.items() if str(self.folder) in line and "ray_watcher" not in line]
        return {pid: every[pid]["name"] for pid in own}


def wait_for_end(*processes, folder=Path("none")):
    deadline = time.monotonic() + 60
    while folder.exists() or any(map(alive, processes)):
        assert time.monotonic() < deadline, [pid for pid in processes if alive(pid)]
        time.sleep(0.1)  # the kernel tells of a process's end nobody but its parent


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path, RAY_AUTH_MODE="disabled", XDG_CACHE_HOME=str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def open_ray(tmp_path_factory):
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
        head = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert any("Ray runtime started" in line for line in head.stdout)
            yield env
        finally:
            head.send_signal(signal.SIGTERM)
            head.communicate(timeout=60)


def test_it_is_private_beside_another_ray_which_it_neither_uses_nor_changes(open_ray):
    mine = Private({name: value for name, value in open_ray.items() if "WINDOWS" not in name})
    assert mine.facts["address"] != open_ray["RAY_ADDRESS"]
    assert not mine.facts["open"] and not mine.facts["wrong"]
    assert Path(open_ray["HOME"], ".ray/auth_token").stat().st_mode & 0o777 == 0o600
    assert mine.folder.stat().st_mode & 0o777 == 0o700
    assert list(mine.folder.glob("*/session_*/sockets/raylet")), "Ray has its files elsewhere"
    assert listening(set(mine.processes())) <= LOOPBACK
    said, _ = mine.process.communicate("")
    assert mine.process.returncode == 0
    ours = {"COBALT_PRIVATE_RAY", "RAY_ADDRESS", "RAY_AUTH_MODE", "VLLM_RPC_BASE_PATH", *IMPORT_ENVIRONMENT}
    assert not ours & set(json.loads(said)), "the environment is as before"
    wait_for_end(folder=mine.folder)
    count = "import ray; ray.init(); print(sum(node['Alive'] for node in ray.nodes()))"
    assert succeed(open_ray, sys.executable, "-c", count).splitlines()[-1] == "1"


def test_after_kill_9_of_its_run_nothing_is_left(env):
    mine = Private(env)
    processes = mine.processes()
    assert {"gcs_server", "raylet"} <= set(processes.values())
    mine.process.kill()
    mine.process.communicate()
    wait_for_end(*processes, mine.facts["child"], folder=mine.folder)


def test_if_it_dies_the_run_says_so_and_names_its_logs(env, tmp_path):
    mine = Private(env)
    processes = mine.processes()
    head = next(pid for pid, name in processes.items() if name == "gcs_server")
    os.kill(head, signal.SIGKILL)
    wait_for_end(head)
    _, said = mine.process.communicate("", timeout=60)
    assert mine.process.returncode == 1
    [kept] = (tmp_path / "cache/cobalt/logs").iterdir()
    assert str(kept) in said
    assert (kept / "raylet.out").exists()
    wait_for_end(*processes, folder=mine.folder)


DIRECT = """
from ray import serve
from cobalt.serving.settings import ServiceSettings
from cobalt.serving.ray_serve import Judge
serve.start(proxy_location="Disabled")
serve.run(serve.deployment(Judge).bind(ServiceSettings(concurrency=1), 1), name="direct", route_prefix=None)
"""


@pytest.mark.sandbox
@pytest.mark.timeout(400)
def test_an_open_ray_is_refused_also_by_a_replica_unless_it_is_allowed_which_every_result_names(open_ray):
    for app in (JUDGE, [*ENGINE, "model=none/none"]):
        assert "allow_open_cluster" in refuse(open_ray, "serve", "run", *app)
    by_itself = run(open_ray, sys.executable, "-c", DIRECT)
    assert by_itself.returncode != 0
    assert "allow_open_cluster" in by_itself.stderr + by_itself.stdout
    succeed(open_ray, "serve", "run", "--non-blocking", *JUDGE, "allow_open_cluster=true")
    result, description, _ = ask(open_ray)
    assert result["private"] is description["private"] is False
