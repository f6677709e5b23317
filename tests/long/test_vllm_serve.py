"""`vllm serve` as a foreign engine, and as a provider, against the engine in the process: vLLM starts five times."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import httpx
import pytest

from cobalt.engine import Call, GenerationSettings
from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.litellm_engine import LiteLLMEngine
from cobalt.engine.provider_access import Credentials
from cobalt.engine.url_engine import UrlEngine
from cobalt.engine.vllm_engine import VllmEngine
from cobalt.engine.vllm_settings import VllmSettings
from cobalt.stage.errors import RequestRefused

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set"),
]

LIMIT = 256
TEXTS = ("Read n. Print n * 2.", "Print a sum.", "1 " * 300)
GREEDY = GenerationSettings(n=2, temperature=0, max_tokens=4000)
SEEDED = GenerationSettings(n=2, seed=3, max_tokens=24)
CALL = Call("p", 0)


@contextlib.contextmanager
def vllm_server(model, *options):
    """A model on loopback, as `vllm serve` serves it on a CPU; yields its URL.

    The program `vllm` itself does not start where vLLM's CPU build is installed, because it asks for the version of a
    package `vllm`.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--block-size", "32", "--enforce-eager"]
    # One process less than vLLM's own choice on a CPU, and it ends with the server however that ends.
    command += ["--distributed-executor-backend", "cobalt.engine.vllm_executor.BoundExecutor"]
    command += ["--no-enable-chunked-prefill", *options]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    # A session of its own, so that all of its processes can be stopped.
    server = subprocess.Popen(command, env=os.environ | variables, start_new_session=True)
    try:
        while True:
            assert server.poll() is None, "vllm serve ended; its messages are above"
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=5).status_code == 200:
                    break
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


async def answers(engine):
    """Answer of an engine, in the fields that decide records."""
    made = [
        await engine.generate([{"role": "user", "content": text}], settings, CALL)
        for text in TEXTS
        for settings in (GREEDY, SEEDED)
    ]
    return [
        (one.text, one.finish_reason, one.finish_reason != "prompt_too_long" and one.prompt_tokens)
        for completions in made
        for one in completions
    ]


def _as_parsed(answer):
    """Text that the server's parser leaves: nothing before `<think>`, and perhaps not the `</think>` at the end."""
    text, *others = answer
    return text.rpartition("<think>")[2].removesuffix("</think>").strip(), *others


@pytest.mark.parametrize("opens", [False, True])
def test_vllm_serve_has_the_texts_of_the_engine_in_the_process(seed_model, tmp_path, opens):
    """With a template that opens the thinking, the server has a parser that takes the thinking out."""
    model, options = tmp_path / "model", ["--reasoning-parser", "deepseek_r1"] if opens else []
    shutil.copytree(seed_model, model)
    if opens:
        template = model / "chat_template.jinja"
        template.write_text(template.read_text() + '{%- if add_generation_prompt %}{{ "<think>\\n" }}{% endif %}')

    async def local():
        settings = VllmSettings(model=str(model), max_model_len=LIMIT, dtype="float32")
        async with VllmEngine(settings, log=tmp_path / "engine.log") as engine:
            return await answers(engine)

    async def foreign(url, **named):
        async with UrlEngine([url], **named) as engine:
            description = await engine.describe()
            return description, await answers(engine)

    expected = asyncio.run(local())
    assert all(text.startswith("<think>") for text, reason, _ in expected if reason != "prompt_too_long" and opens)
    assert {reason for _, reason, _ in expected} >= {"length", "prompt_too_long"}
    with vllm_server(model, "--max-model-len", str(LIMIT), *options) as url:
        description, made = asyncio.run(foreign(url))
        assert description == {"model": str(model), "max_model_len": LIMIT, "foreign": True}
        if opens:
            assert all(text.startswith("<think>\n") for text, reason, _ in made if reason != "prompt_too_long")
        compared = _as_parsed if opens else tuple
        assert any(compared(one)[0] for one in made)
        assert [compared(one) for one in made] == [compared(one) for one in expected]


def test_vllms_own_server_is_an_openai_compatible_provider(seed_model):
    hello = [{"role": "user", "content": "hello"}]
    sampling = GenerationSettings(temperature=1, top_p=1, max_tokens=24, n=3, seed=0, chat_template_thinking="on")
    with vllm_server(seed_model, "--served-model-name", "seed", "--max-model-len", "1024") as url:
        settings = ApiFlags(model_name="seed", api_base=url, reasoning_effort="default", attempts=1)

        async def twice():
            async with LiteLLMEngine(settings, Credentials({})) as one:
                about = await one.describe()
                first = await one.generate(hello, sampling, Call(0, 0))
                return about, first, await one.generate(hello, sampling, Call(0, 0))

        about, first, second = asyncio.run(twice())
        assert about["provider"] == "openai"
        assert [completion.text for completion in first] == [completion.text for completion in second]
        assert len({completion.text for completion in first}) > 1
        assert all(0 < completion.completion_tokens <= 24 for completion in first)
        assert all(completion.prompt_tokens > 0 and completion.cost is None for completion in first)
        long = [{"role": "user", "content": "1 " * 4000}]
        [too_long, *_] = asyncio.run(LiteLLMEngine(settings, Credentials({})).generate(long, sampling, Call(0, 0)))
        assert too_long.finish_reason == "prompt_too_long"
        wrong = replace(settings, model_name="other")
        with pytest.raises(RequestRefused, match="'other'"):
            asyncio.run(LiteLLMEngine(wrong, Credentials({})).generate(hello, sampling, Call(0, 0)))
