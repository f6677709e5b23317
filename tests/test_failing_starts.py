"""What does not start says why: before Ray where no service is needed, and with the first error and the logs after."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from support import ROOT

from cobalt.engine.model_check import check_model
from cobalt.engine.startup import first_error
from cobalt.serving import cluster, service_logs, services
from cobalt.serving.service_logs import KEPT, keeping_logs, logs_folder
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError

ENGINE_LOG = """\
(EngineCore pid=7) WARNING [x.py:1] ImportError: an optional package is missing, going on without
(EngineCore pid=7) Process EngineCore:
(EngineCore pid=7) Traceback (most recent call last):
(EngineCore pid=7)   File "vllm/weight_utils.py", line 958, in safetensors_weights_iterator
(EngineCore pid=7)     with safe_open(st_file, framework="pt") as f:
(EngineCore pid=7) safetensors._safetensors_rust.SafetensorError: Error while deserializing header: too short
Traceback (most recent call last):
  File "vllm/v1/engine/async_llm.py", line 1, in from_engine_args
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def make_model(folder, **tokenizer):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (ENGINE_LOG, "SafetensorError: Error while deserializing header: too short"),
        ("\n".join(ENGINE_LOG.splitlines()[-3:]), ""),
        ("Traceback (most recent call last):\nValueError: No available memory for the cache blocks.\n",
         "ValueError: No available memory for the cache blocks."),
        ("all is well\n", ""),
    ],
)  # fmt: skip
def test_the_first_error_of_vllms_engine_is_its_own_and_not_that_of_who_waits_for_it(log, cause):
    assert first_error(log) == cause


def test_a_model_folder_without_a_chat_template_is_refused_whatever_file_could_hold_one(tmp_path):
    with pytest.raises(UserError, match="chat template"):
        check_model(str(make_model(tmp_path / "none")))
    check_model(str(make_model(tmp_path / "inside", chat_template="{{ messages }}")))
    beside = make_model(tmp_path / "beside")
    (beside / "chat_template.jinja").write_text("{{ messages }}")
    check_model(str(beside))
    (tmp_path / "none" / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json"):
        check_model(str(tmp_path / "none"))


def test_a_hub_name_is_refused_at_once_where_the_hub_may_not_or_cannot_be_asked(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        check_model("owner/no-such-model")
    with pytest.raises(UserError, match="not a name on the Hub"):
        check_model("owner//name")


def run_services(*arguments, **variables):
    code = (
        "import sys; from cobalt.stage.errors import CobaltError; from cobalt.serving.services import *\n"
        "try:\n"
        "    run_beside_services(parse_arguments(Arguments))\n"
        "except CobaltError as error: print(type(error).__name__, error)\n"
        "print('ray' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", "from cobalt.stage.cli import parse_arguments\n" + code, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--model", "owner/no-such-model"], "owner/no-such-model"),
        (["--model", "{model}", "--engine", "no_key=1"], "no_key"),
        (["--model", "{model}"], "chat template"),
        (["--judge", "no_key=1"], "no_key"),
        (["--judge", "comparison=none-such"], "comparison"),
        (["--judge", "no_value"], "no_value"),
        (["--http_port", "99999"], "99999"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_a_mistake_that_shows_without_services_is_found_before_ray_is_imported(tmp_path, arguments, named):
    model = make_model(tmp_path / "model")
    command = [] if arguments[0] == "no-such-command" else ["true"]
    flags = [argument.format(model=model) for argument in arguments]
    said, ray = run_services(*(flags if command else []), "--", *(command or flags), HF_HUB_OFFLINE="1")
    assert said.startswith("UserError")
    assert named in said
    assert ray == "False"


def ray_folder(tmp_path, name="worker.err", content="why"):
    logs = tmp_path / "ray" / "session_1" / "logs"
    (logs / "serve").mkdir(parents=True, exist_ok=True)
    (logs / name).write_text(content)
    (logs / "serve" / "empty.log").touch()
    return tmp_path / "ray"


def test_the_logs_of_a_failure_are_kept_and_named_and_those_of_a_mistake_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ray_folder(tmp_path, "serve/replica.log")
    folder = ray_folder(tmp_path)
    with pytest.raises(UserError), keeping_logs(folder):
        raise UserError("a typo")
    assert not logs_folder().exists()
    with pytest.raises(ServiceDown) as failed, keeping_logs(folder):
        raise ServiceDown("it did not start")
    [kept] = logs_folder().iterdir()
    assert str(failed.value) == f"it did not start (logs: {kept})"
    assert kept.stat().st_mode & 0o777 == 0o700
    files = {path.name: path.read_text() for path in kept.rglob("*") if path.is_file()}
    assert files == {"worker.err": "why", "replica.log": "why"}


def test_only_the_logs_of_the_last_failures_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = ray_folder(tmp_path)
    stamps = iter(f"20260101-00000{number}" for number in range(9))
    monkeypatch.setattr(service_logs.time, "strftime", lambda form: next(stamps))
    for _ in range(KEPT + 2):
        with pytest.raises(InfrastructureError), keeping_logs(folder):
            raise InfrastructureError("again")
    assert sorted(path.name[:15] for path in logs_folder().iterdir()) == [
        f"20260101-00000{n}" for n in range(2, KEPT + 2)
    ]


def test_a_failure_without_logs_keeps_its_message(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InfrastructureError, match="^no Ray$"), keeping_logs(tmp_path):
        raise InfrastructureError("no Ray")


# --- joining a cluster


@pytest.fixture
def silent_server():
    """A server that takes connections and never answers; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["nonsense", "host:port", "host:99999", "host:0", ":6379", "ray://nonsense"])
def test_a_ray_address_that_is_none_is_a_mistake_found_before_ray_is_imported(address):
    code = (
        "import sys; from cobalt.serving import cluster; from cobalt.stage.errors import UserError\n"
        "try: cluster.join('x', 'y')\n"
        "except UserError as error: print(error)\n"
        "print('ray' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": address},
        capture_output=True,
        text=True,
    )
    said, ray = finished.stdout.splitlines()
    assert f"RAY_ADDRESS={address} is not an address" in said
    assert ray == "False"


@pytest.mark.parametrize("mode", [None, "token"])
def test_a_server_that_is_not_ray_is_named_within_a_time_limit(silent_server, monkeypatch, mode):
    monkeypatch.setenv("RAY_ADDRESS", silent_server)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr(cluster, "_ANSWER_SECONDS", 0.2)
    started = time.monotonic()
    with pytest.raises(ServiceDown, match=silent_server):
        cluster.join("nothing works", "start it")
    assert time.monotonic() - started < 30


def test_a_cluster_that_is_never_joined_is_given_up(monkeypatch):
    import ray

    forever = threading.Event()
    monkeypatch.setattr(ray, "init", lambda **options: forever.wait(60))
    monkeypatch.setattr(cluster, "_JOIN_SECONDS", 0.1)
    with pytest.raises(ConnectionError, match="not joined within"):
        cluster.connect("auto")
    forever.set()


def test_what_ray_raises_while_it_joins_reaches_the_caller(monkeypatch):
    import ray

    def refuse(**options):
        raise ConnectionError("no node here")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ConnectionError, match="no node here"):
        cluster.connect("auto")


def test_without_ray_the_message_has_the_easiest_way_to_start_all_that_is_missing(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "running_cluster", lambda **options: None)
    from cobalt.engine.vllm_client import ServeEngine

    with pytest.raises(ServiceDown) as missing:
        asyncio.run(ServeEngine(attempts=1).describe())
    for part in ("Ray is not running", "cobalt serve --model", "python -m cobalt.services --model", "the judge"):
        assert part in str(missing.value)


def test_a_command_that_the_system_cannot_execute_is_a_mistake(tmp_path, monkeypatch):
    script = tmp_path / "command"
    script.write_text("echo 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(services, "running_services", lambda **_: contextlib.nullcontext({}))
    monkeypatch.setattr(services, "enter_delegated", lambda: None)
    with pytest.raises(UserError, match="cannot run .*Exec format error"):
        services.run_beside_services(services.Arguments([str(script)]))
