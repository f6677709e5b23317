"""The process of a real vLLM engine: its output, its death, its answers in the process and behind its app, services.

`test_signals.py` has the signals.
"""

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys

import httpx
import psutil
import pytest
from serving import SIGNALS, served
from support import ROOT, square_problem, write_lines
from test_services import SERVICES, WAITS, beside, run

from cobalt.engine import Call, GenerationSettings
from cobalt.engine.url_engine import UrlEngine
from cobalt.serving.engine_app import EngineService, engine_api
from cobalt.serving.settings import EngineServiceSettings
from cobalt.stage.errors import ServiceDown

pytestmark = [
    pytest.mark.services,
    pytest.mark.timeout(400),
    pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set"),
]

CALL = Call("p", 0)


async def test_an_engine_and_its_app_have_the_same_answers_and_a_dead_one_says_so(seed_model, tmp_path):
    log = tmp_path / "engine.log"
    settings = EngineServiceSettings(model=str(seed_model), max_model_len=256, dtype="float32")
    service = EngineService(settings, log=log)

    conversations = [
        [{"role": "user", "content": text}] for text in ("Read n. Print n * 2.", "Print a sum.", "1 " * 300)
    ]
    greedy = GenerationSettings(n=1, temperature=0, max_tokens=4000)
    seeded = GenerationSettings(n=3, seed=3, max_tokens=24)

    async def answers(engine):
        made = [await engine.generate(conversation, greedy, CALL) for conversation in conversations]
        return [
            completion.model_dump(exclude={"cached_tokens", "message"})
            for completions in (*made, await engine.generate(conversations[0], seeded, CALL))
            for completion in completions
        ]

    async with served(engine_api(service)) as url:
        expected = await answers(service.engine)
        assert [answer["finish_reason"] for answer in expected[:3]][2] == "prompt_too_long"
        assert all(answer["text"] for answer in expected if answer["finish_reason"] != "prompt_too_long")
        async with UrlEngine([url]) as own:
            assert await answers(own) == expected
            assert await own.describe() == await service.engine.describe()
        [engine] = [child for child in multiprocessing.active_children() if child.name == "EngineCore"]
        assert os.getpgid(engine.pid) == engine.pid
        assert psutil.Process(engine.pid).cmdline()[0].startswith("VLLM::EngineCore")
        engine.kill()
        with pytest.raises(ServiceDown, match=str(log)):
            await service.engine.generate(conversations[0], greedy, CALL)
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            health = await client.get("/health")
            assert (health.status_code, str(log) in health.text) == (503, True)
    assert log.exists()


def test_a_start_that_fails_says_why_in_one_line_and_leaves_its_log(tmp_path, seed_model):
    result, broken = tmp_path / "single.jsonl", tmp_path / "model"
    broken.mkdir()
    for path in seed_model.iterdir():
        if path.suffix != ".safetensors":
            (broken / path.name).write_bytes(path.read_bytes())
    (broken / "model.safetensors").write_bytes(b"no weights")
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0)])
    command = [sys.executable, "-m", "cobalt.commands", "sample", "-i", problems, "-o", result, "--model", broken]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (finished.returncode, finished.stdout) == (1, "")
    [line], log = finished.stderr.splitlines(), result.with_name("single.engine.log")
    assert "Error: " in line and str(log) in line
    assert "Traceback" in log.read_text()


def test_a_service_that_does_not_start_is_one_sentence_with_its_first_error_and_its_logs(seed_model, tmp_path):
    weights = shutil.copytree(seed_model, tmp_path / "model") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = ["--http_port", taken.getsockname()[1]]
        length = ["--model", seed_model, "--engine", "max_model_len=99999999"]
        for name, flags, code, named in (
            ("port", port, 2, "in use"),
            ("length", length, 2, "'max_model_len': 99999999"),
            ("broken", ["--model", weights.parent], 1, "vLLM's engine did not start: SafetensorError: "),
        ):
            finished = run(*SERVICES, *flags, "--", "true", code=code, XDG_CACHE_HOME=str(tmp_path / name))
            assert named in finished.stderr and "Traceback" not in finished.stderr
    [logs] = (tmp_path / "broken" / "cobalt" / "logs").iterdir()
    assert f"(logs: {logs})" in finished.stderr
    assert "SafetensorError" in next(logs.glob("engine*.stderr")).read_text()


def test_services_that_are_killed_end_their_command_and_leave_no_process(seed_model, tmp_path):
    with beside(tmp_path, WAITS, "--model", seed_model, "--engine", "max_model_len=1024") as command:
        assert command.process.stdout.readline() == "up\n"
        command.end(SIGNALS[2])
        command.assert_nothing_is_left()
