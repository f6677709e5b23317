"""The process of a real vLLM engine: signals during its start, its output, its death; and its answers by every way.

`test_signals.py` has the commands themselves, which are also ended while they sample.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys

import httpx
import psutil
import pytest
from serving import served
from support import ROOT

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
COMMAND = """
import asyncio, sys
from dataclasses import dataclass
from pathlib import Path

from cobalt.engine.opening import open_vllm_or_url
from cobalt.stage.cli import run_script


@dataclass
class Arguments:
    model: str
    log: Path


async def start(arguments):
    print("starting", flush=True)
    async with open_vllm_or_url(model=arguments.model, settings=["dtype=float32"], log=arguments.log):
        print("started", flush=True)


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: asyncio.run(start(arguments)))
"""


@pytest.mark.parametrize("stage", ["starting", "loading"])
@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_an_engine_that_starts_ends_with_its_command_and_says_nothing(tmp_path, seed_model, stage, end):
    script, log = tmp_path / "command.py", tmp_path / "engine.log"
    script.write_text(COMMAND)
    command = [sys.executable, str(script), "--model", str(seed_model), "--log", str(log)]
    # A session of its own, as a terminal gives it to a command: SIGINT goes to the whole group.
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    engines = []
    try:
        assert process.stdout.readline() == "starting\n"
        if stage == "loading":
            while not any(map(is_spawned, psutil.Process(process.pid).children())):
                assert process.poll() is None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
        engines = psutil.Process(process.pid).children(recursive=True)
        (os.killpg if end == "SIGINT" else os.kill)(process.pid, signal.Signals[end])
        stdout, stderr = process.communicate(timeout=60)
        assert (stdout, len(stderr.splitlines())) == ("", 0 if end == "SIGKILL" else 1), stderr
        assert process.returncode == (-signal.SIGKILL if end == "SIGKILL" else 130)
        _, left = psutil.wait_procs(engines, 60)
        assert not left
        assert end == "SIGKILL" or not log.exists()
    finally:
        for left in engines:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_spawned(process):
    return "spawn_main" in " ".join(process.cmdline())


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
    script, log = tmp_path / "command.py", tmp_path / "engine.log"
    script.write_text(COMMAND)
    broken = tmp_path / "model"
    broken.mkdir()
    for path in seed_model.iterdir():
        if path.suffix != ".safetensors":
            (broken / path.name).write_bytes(path.read_bytes())
    (broken / "model.safetensors").write_bytes(b"no weights")
    command = [sys.executable, str(script), "--model", str(broken), "--log", str(log)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (finished.returncode, finished.stdout) == (1, "starting\n")
    [line] = finished.stderr.splitlines()
    assert "Error: " in line
    assert str(log) in line
    assert "Traceback" in log.read_text()
