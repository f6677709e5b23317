"""Failed starts say why: before Ray where no service is needed, and with the first error and the logs after."""

import contextlib
import os

import pytest

from cobalt.engine.model_check import check_model
from cobalt.engine.startup import first_error
from cobalt.serving import services
from cobalt.stage.environment import new_log_folder
from cobalt.stage.errors import UserError

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


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer_config.json", '{"chat_template": "{{ messages }}"}'), ("chat_template.jinja", "{{ messages }}")],
)
def test_a_chat_template_may_lie_in_each_file_that_can_hold_one(tmp_path, name, content):
    for file in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / file).write_text("{}")
    (tmp_path / name).write_text(content)
    check_model(str(tmp_path))


def test_a_command_beside_services_that_the_system_cannot_execute_is_a_mistake(tmp_path, monkeypatch):
    script = tmp_path / "command"
    script.write_text("echo 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(services, "started_servers", lambda **_: contextlib.nullcontext({}))
    monkeypatch.setattr(services, "enter_delegated", lambda: None)
    with pytest.raises(UserError, match=f"{script}.*Exec format error"):
        services.run_beside_services(services.Arguments([str(script)]))


def test_the_last_folders_of_logs_stay_and_those_of_living_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    logs = tmp_path / "cobalt" / "logs"
    mine, *ended = (logs / f"2000010{day}-000000-{pid}" for day, pid in enumerate([os.getpid(), *[2**30] * 6]))
    for folder in (mine, *ended):
        folder.mkdir(parents=True)
    assert {mine, *ended[-4:], new_log_folder()} == set(logs.iterdir())
