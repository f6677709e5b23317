"""OpenAI's routes of the engine: first the rules that need no engine, then the real engine with the `openai` client."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import httpx
import huggingface_hub.constants
import pytest
from serving import served, until
from support import ROOT, needs_api

from cobalt.engine import vllm_settings
from cobalt.engine.model_name import model_name
from cobalt.serving.http_guard import Guard
from cobalt.serving.openai_routes import SAMPLING_DEFAULTS, OpenAIRoutes, check_text
from cobalt.serving.service_api import service_api
from cobalt.serving.settings import HttpSettings
from cobalt.stage.errors import UserError

GREETING = [{"role": "user", "content": "Print the square of a number."}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 4000}}
DEEP = {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "http://x"}}, {"image_url": "http://x"}, "text"]
)
def test_a_message_with_anything_but_text_is_refused_before_it_is_fetched(part):
    check_text({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, *GREETING]})
    check_text({"messages": [3, None, {"content": 5}]})  # which is left to vLLM's own check
    with pytest.raises(UserError, match=r"messages\.1"):
        check_text({"messages": [*GREETING, {"role": "user", "content": [part]}]})


@pytest.mark.parametrize(("flags", "bfloat16"), [("fpu avx512f", False), ("fpu avx512_bf16", True), ("fp bf16", True)])
def test_float32_is_chosen_only_on_a_cpu_without_bfloat16(monkeypatch, flags, bfloat16):
    monkeypatch.setattr(Path, "read_text", lambda path, **_: f"flags\t\t: {flags}\n")
    assert vllm_settings.default_dtype(on_gpu=True) == "auto"
    assert vllm_settings.default_dtype(on_gpu=False) == ("auto" if bfloat16 else "float32")


@pytest.mark.parametrize(
    ("config", "threads"),
    [('{"hidden_size": 511}', 1), ('{"hidden_size": 512}', 3), ('{"text_config": {"hidden_size": 64}}', 1), ("{}", 3)],
)
def test_a_narrow_model_computes_on_one_core_and_others_on_all(tmp_path, monkeypatch, config, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 2, 3})
    (tmp_path / "config.json").write_text(config)
    assert vllm_settings.threads_for(str(tmp_path)) == threads


CONFIG = '{"hidden_size": 8}'


def save_model(folder, content=CONFIG):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(content)
    return folder


def test_a_model_is_named_after_its_folder_or_run_and_its_files_and_one_of_the_hub_by_its_commit(tmp_path, monkeypatch):
    policies = [save_model(tmp_path / run / "model", content) for run, content in (("ft", CONFIG), ("again", "{}"))]
    copy, link = save_model(tmp_path / "smollm2"), tmp_path / "link"
    link.symlink_to(policies[0])
    monkeypatch.chdir(copy)
    names = [model_name(str(model)) for model in [*policies, copy, link, "../ft/model", "."]]
    labels, digests = zip(*(name.rsplit("-", 1) for name in names), strict=True)
    assert labels == ("ft", "again", "smollm2", "link", "ft", "smollm2")
    assert all(re.fullmatch("[0-9a-f]{8}", digest) for digest in digests)
    assert {digests.index(digest) for digest in digests} == {0, 1}  # the same files have the same digest
    trained_again = set()
    for weights in (b"a" * 100, b"b" + b"a" * 99, b"a" * 99 + b"b"):
        (copy / "model.safetensors").write_bytes(weights)
        trained_again.add(model_name(str(copy)))
    assert len(trained_again) == 3
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert model_name("owner/Small-1B") == "Small-1B"
    commit, entry = "0123456789abcdef0123456789abcdef01234567", tmp_path / "models--owner--Small-1B"
    save_model(entry / "snapshots" / commit)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(commit)
    assert model_name("owner/Small-1B") == "Small-1B-01234567"


TOKEN = "a-token-of-decent-length"
SENT = {"Authorization": f"Bearer {TOKEN}"}
CHAT = "/v1/chat/completions"


class StuckEngine:
    """As much of an engine as the serving classes of vLLM use: a real configuration, and generations that never end."""

    def __init__(self, folder):
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.renderers import renderer_from_config

        arguments = AsyncEngineArgs(model=str(folder), max_model_len=512, dtype="float32", enforce_eager=True)
        self.vllm_config = arguments.create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        self.input_processor = None
        self.errored = False
        self.asked, self.ended = [], 0

    async def generate(self, prompt, parameters, request_id, **_):
        self.asked.append(parameters)
        try:
            await asyncio.Event().wait()
            yield
        finally:
            self.ended += 1


@pytest.fixture(scope="module")
def stuck(seed_model):
    return StuckEngine(seed_model)


def stuck_api(engine):
    """An app with a token, a limit of 10,000 bytes, and a stop token of its own."""
    guard = Guard(HttpSettings(token=TOKEN, max_request_bytes=10_000), "X_")
    routes = OpenAIRoutes(engine, ["m-12345678", "m"], [5], guard, max_completions=4, max_seconds=60)
    api = service_api(SimpleNamespace(open=AsyncMock(), close=AsyncMock()))
    api.post(CHAT)(routes.chat)
    api.get("/v1/models")(routes.models)
    return api


async def asked_of_stuck(engine, content=None, path=CHAT, headers=None, **fields):
    """The answer to a chat request, or to a `GET` of another path."""
    body = json.dumps({"model": "m", "messages": GREETING} | fields) if content is None else content
    transport, method = httpx.ASGITransport(app=stuck_api(engine)), "POST" if path == CHAT else "GET"
    async with httpx.AsyncClient(transport=transport, base_url="http://app", headers=SENT) as client:
        return await client.request(method, path, content=body, headers=headers)


@pytest.mark.services
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_takes_too_long_is_answered_and_its_generation_ended(stuck, stream, monkeypatch):
    asked, before = len(stuck.asked), stuck.ended
    loop, time = asyncio.get_running_loop(), asyncio.get_running_loop().time
    monkeypatch.setattr(loop, "time", lambda: time() + 100 * (len(stuck.asked) > asked))  # once it generates
    answer = await asked_of_stuck(stuck, stream=stream)
    assert stuck.ended == before + 1
    assert answer.status_code == (200 if stream else 503)
    *_, last = answer.text.removesuffix("\n\ndata: [DONE]\n\n").split("data: ")
    assert json.loads(last)["error"]["code"] == 503
    assert "max_request_seconds" in last


@pytest.mark.services
async def test_the_engine_is_asked_for_openais_defaults_and_the_apps_stops(stuck):
    for extra, stops in (({}, [5]), ({"stop_token_ids": [7]}, [7, 5]), ({"ignore_eos": True}, [])):
        asked = len(stuck.asked)
        request = asyncio.create_task(asked_of_stuck(stuck, **extra))
        await until(lambda asked=asked: len(stuck.asked) > asked)
        request.cancel()
        parameters = stuck.asked[-1]
        assert parameters.stop_token_ids == stops
        sampling = {name: getattr(parameters, name) for name in SAMPLING_DEFAULTS}
        assert sampling == SAMPLING_DEFAULTS


@pytest.mark.services
async def test_a_request_that_is_refused_never_reaches_the_engine(stuck):
    before, page = len(stuck.asked), {"Origin": "http://example.org"}
    image = {"type": "image_url", "image_url": {"url": "http://x"}}
    for status, asked in (
        (401, {"headers": {"Authorization": "Bearer another-token-of-this-length"}}),
        (403, {"headers": page}),
        (413, {"user": "x" * 10_000}),
        (400, {"content": "[1]"}),
        *((400, {"messages": messages}) for messages in (3, [5], [{"role": "user", "content": [image]}])),
        (400, {"messages": [*GREETING, DEEP]}),
        (400, {"messages": [{"role": "user", "content": "word " * 1500}]}),
        *((400, {"n": count}) for count in (0, 5)),
        (400, {"temperature": -1}),
        (400, {"stream": True, "temperature": "hot"}),
        (400, {"max_tokens": 10**9}),
        (400, {"chat_template": "{{ 1 }}"}),
        (400, {"stop_token_ids": ["x"]}),
        (400, {"structured_outputs": 5}),
        (404, {"model": "another"}),
    ):
        answer = await asked_of_stuck(stuck, **asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, status), asked
    assert "m-12345678" in answer.text
    assert len(stuck.asked) == before
    for status, sent in ((200, {}), (403, page)):
        assert (await asked_of_stuck(stuck, path="/v1/models", headers=sent)).status_code == status


@pytest.mark.services
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_ends_its_generation(stuck, stream):
    asked, ended = len(stuck.asked), stuck.ended
    async with served(stuck_api(stuck)) as url, httpx.AsyncClient(headers=SENT) as client:
        body = {"messages": GREETING, "stream": stream}
        request = asyncio.create_task(client.post(f"{url}{CHAT}", json=body))
        await until(lambda: len(stuck.asked) > asked)
        request.cancel()  # closes the connection
        await until(lambda: stuck.ended > ended)


@pytest.fixture(scope="module")
def served_model(services):
    """The URL of the real engine, its client, and the model that it lists."""
    from openai import OpenAI

    url = services["COBALT_ENGINE_URL"]
    with OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        [model] = client.models.list().data
        yield url, client, model


def marked(test):
    """Marks a test that asks the real engine with the `openai` client."""
    return pytest.mark.services(needs_api(test))


@marked
def test_every_answer_has_the_name_that_is_served_and_no_path(served_model, seed_model):
    url, _, model = served_model
    assert (model.id, model.max_model_len) == (model_name(str(seed_model)), 1024)
    assert str(seed_model) not in model.model_dump_json()
    for fields in ({"model": seed_model.name}, {"model": model.id}, {}):
        body = {"messages": GREETING, "max_tokens": 1} | fields
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()["model"] == model.id


@marked
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.6, "top_p": 0.95, "n": 2, "seed": 7}])
def test_a_chat_says_at_once_or_in_pieces_what_the_apps_own_route_says(served_model, sampling):
    url, client, model = served_model
    asked = {"messages": GREETING, "max_tokens": 48} | sampling
    own = httpx.post(url, json=asked, timeout=120).json()["completions"]
    answer = client.chat.completions.create(model=model.id, **asked)
    choices = [(choice.message.content, choice.finish_reason) for choice in answer.choices]
    assert choices == [(completion["text"], completion["finish_reason"]) for completion in own]
    assert answer.usage.prompt_tokens == own[0]["prompt_tokens"]
    assert answer.usage.completion_tokens == sum(completion["completion_tokens"] for completion in own)
    streamed = [""] * len(own)
    for chunk in client.chat.completions.create(model=model.id, stream=True, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == [completion["text"] for completion in own]


@marked
def test_an_error_has_openais_form_and_the_clients_class(served_model):
    import openai

    _, client, model = served_model
    asked = {"model": model.id, "messages": GREETING, "max_tokens": 1}
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**asked | {"model": "no-such-model"})
    assert missing.value.param == "model" and model.id in str(missing.value)
    # What the engine itself refuses.
    for fields in ({"logprobs": True, "top_logprobs": 10**6}, {"extra_body": {"top_k": 10**30}}):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**asked, **fields)
        assert refused.value.body["message"] and refused.value.body["code"] == 400, fields


@marked
def test_the_example_of_the_page_runs_as_it_is_shown(services):
    page = (ROOT / "docs" / "engines.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    options = {"env": os.environ | services, "capture_output": True, "text": True, "timeout": 120, "check": True}
    assert subprocess.run([sys.executable, "-c", code], **options).stdout.startswith("['")
