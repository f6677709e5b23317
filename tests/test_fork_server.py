"""Workers of a training run on a CPU are forks of a process that has imported their packages."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

import cobalt_verl
from cobalt_verl.cpu.fork_server import SOCKET

CLIENT = Path(cobalt_verl.__file__).parent / "cpu" / "fork_client.py"
SERVER = """
import sys
from pathlib import Path
from cobalt_verl.cpu.fork_server import serve
serve(Path(sys.argv[1]), int(sys.argv[2]), ["colorsys"], ["chunk"])
"""
SCRIPT = """
import gc, json, os, random, signal, sys
import numpy as np
print(json.dumps({
    "pid": os.getpid(),
    "group": os.getpgid(0),
    "name": __name__,
    "arguments": sys.argv,
    "first_path": sys.path[0],
    "variable": os.environ.get("WORD"),
    "home": os.environ.get("HOME"),
    "folder": os.getcwd(),
    "imported": {"colorsys", "chunk"} <= set(sys.modules),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGCHLD)],
    "collects": gc.isenabled(),
    "child": os.waitstatus_to_exitcode(os.system("exit 3")),
    "draws": [random.random(), float(np.random.rand())],
}))
"""


@pytest.fixture
def folder(tmp_path_factory):
    # The name of a socket has at most 107 characters.
    return tmp_path_factory.mktemp("f")


@contextlib.contextmanager
def serving(folder, program=SERVER, **options):
    """The server's process, which listens."""
    process = subprocess.Popen([sys.executable, "-c", program, str(folder), str(os.getpid())], **options)
    try:
        while not (folder / SOCKET).exists():
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def ask(folder, script, *arguments, cwd, **variables):
    """Output of the worker that a client asks for, None for nothing, and its error output."""
    command = [sys.executable, "-I", "-S", str(CLIENT), str(folder / SOCKET), str(script), *arguments]
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(done.stdout or "null"), done.stderr


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "scripts" / "worker.py"
    file.parent.mkdir()
    file.write_text(SCRIPT, encoding="utf-8")
    return file


def test_a_fork_is_the_process_that_its_client_would_have_been_and_no_request_ends_the_server(folder, script, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('of the fork')", encoding="utf-8")
    with serving(folder) as server:
        said, errors = ask(folder, script, "a b", "", cwd=tmp_path, WORD="é\n")
        assert "ValueError: of the fork" in ask(folder, broken, cwd=tmp_path)[1]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(folder / SOCKET))
            client.sendall(b'{"argum')  # and no more
        other, _ = ask(folder, script, cwd=tmp_path)  # with random numbers of its own
    assert said["imported"] and said["collects"] and len({said["pid"], other["pid"], server.pid}) == 3
    assert not set(said["draws"]) & set(other["draws"])
    assert said["group"] == said["pid"], "Ray ends the group of a worker that has ended"
    assert said["name"] == "__main__"
    assert said["arguments"] == [str(script), "a b", ""]
    assert said["first_path"] == str(script.parent)
    assert (said["variable"], said["home"]) == ("é\n", None)
    assert said["folder"] == str(tmp_path)
    assert said["signals"] == [str(signal.SIG_DFL)] * 2 and said["child"] == 3
    assert errors == ""


def test_without_a_server_the_client_becomes_python(folder, script, tmp_path):
    said, _ = ask(folder, script, "x", cwd=tmp_path, WORD="1")
    assert not said["imported"]
    assert (said["arguments"], said["variable"]) == ([str(script), "x"], "1")


def test_no_two_forks_draw_the_same_id_from_ray(folder, tmp_path):
    (tmp_path / "some_actors.py").write_text("import ray\n\n@ray.remote\nclass Actor:\n    pass\n", encoding="utf-8")
    draw = tmp_path / "draw.py"
    draw.write_text("import ray, json\nprint(json.dumps(ray.ActorClassID.from_random().hex()))", encoding="utf-8")
    program = SERVER.replace("chunk", "some_actors")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with serving(folder, program, env=environment):
        ids = [ask(folder, draw, cwd=tmp_path)[0] for _ in range(2)]
    assert ids[0] != ids[1]


def test_the_server_ends_with_the_process_that_started_it_and_removes_its_folder(folder):
    starter = (
        "import os, subprocess, sys; command = [sys.executable, '-c', sys.argv[2], sys.argv[1], str(os.getpid())];"
        " print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid)"
    )
    command = [sys.executable, "-c", starter, str(folder), SERVER]
    server = int(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(server)
        assert select.select([descriptor], [], [], 30)[0]
        os.close(descriptor)
    assert not folder.exists()
