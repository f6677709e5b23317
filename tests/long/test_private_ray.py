"""The private Ray of a training run, apart from a Ray that is open to all; and that the apps refuse such a Ray.

That a killed run leaves nothing of its Ray is in `test_training_services.py`.
"""

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
from support import ROOT, alive, descendants
from test_cluster import ENGINE, JUDGE, ask, environment, flags, refuse, run, succeed

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

START = """
import json, os, sys
from dataclasses import dataclass
from cobalt.stage.cli import run_script
from cobalt.training.cluster import asks_for_token
from cobalt.training.private_ray import private_ray
from cobalt.training.ray_watcher import VARIABLE
@dataclass
class Arguments: pass
def main(_):
    with private_ray(num_cpus=2, num_gpus=1, object_store_memory=10**8) as variables:
        address = variables["RAY_ADDRESS"]
        asks = [asks_for_token(address), asks_for_token(address, "0123456789abcdef0123456789abcdef")]
        print(json.dumps([address, os.environ[VARIABLE], asks]), flush=True)
        sys.stdin.read()
    return 0
run_script(Arguments, main)
"""


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


def wait_for_end(*processes, folder=Path("none")):
    deadline = time.monotonic() + 60
    while folder.exists() or any(map(alive, processes)):
        assert time.monotonic() < deadline, [pid for pid in processes if alive(pid)]
        time.sleep(0.1)  # the kernel tells of a process's end nobody but its parent


def test_it_is_private_beside_another_ray_and_if_it_dies_the_run_says_so_and_leaves_the_other(open_ray, tmp_path):
    env = {name: value for name, value in open_ray.items() if "WINDOWS" not in name}
    mine = subprocess.Popen(
        [sys.executable, "-c", START], cwd=ROOT, env=env | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    address, named, asks = json.loads(mine.stdout.readline() or mine.communicate()[1])
    folder = Path(named)
    assert address != open_ray["RAY_ADDRESS"] and asks == [True, True]
    assert Path(open_ray["HOME"], ".ray/auth_token").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.glob("*/session_*/sockets/raylet")), "Ray has its files elsewhere"
    processes = descendants(mine.pid)
    assert listening(set(processes)) <= LOOPBACK
    head = next(pid for pid in processes if psutil.Process(pid).name() == "gcs_server")
    os.kill(head, signal.SIGKILL)
    wait_for_end(head)
    _, said = mine.communicate("", timeout=60)
    assert mine.returncode == 1
    [logs] = (tmp_path / "cache/cobalt/logs").iterdir()
    assert str(logs) in said and (logs / "raylet.out").exists()
    wait_for_end(*processes, folder=folder)
    count = "import ray; ray.init(); print(sum(node['Alive'] for node in ray.nodes()))"
    assert succeed(open_ray, sys.executable, "-c", count).splitlines()[-1] == "1"


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
