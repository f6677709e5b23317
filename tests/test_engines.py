"""The kinds of engine keep one protocol: in this process, behind a URL, on foreign servers, of providers, recorded."""

import asyncio
import contextlib
import json
from types import SimpleNamespace

import httpx
import pytest
from chat_tokenizers import FORMS, make_tokenizer, save_policy
from provider import answer, failure, serve
from serving import served
from support import needs_api, write_lines

from cobalt.engine import Call, Completion, GenerationSettings, startup
from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.opening import open_vllm_or_url
from cobalt.engine.provider_access import Credentials
from cobalt.engine.replay import ReplayEngine
from cobalt.engine.url_engine import UrlEngine
from cobalt.engine.vllm_engine import VllmEngine
from cobalt.engine.vllm_settings import VllmSettings
from cobalt.episode.chat_template import end_of_turn
from cobalt.serving import engine_app
from cobalt.serving.settings import EngineServiceSettings
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError

CHAT = [{"role": "user", "content": "Print the square of a number."}]
CALL = Call("p", 0)
TWO = GenerationSettings(n=2, seed=7, max_tokens=50)
TOKEN = "a-token-of-the-tests"


# --- foreign servers


@contextlib.asynccontextmanager
async def foreign(*script, models=None, attempts=1, **options):
    with serve(*script) as provider:
        if models is not None:
            provider.models = models
        async with UrlEngine([provider.url], attempts=attempts, **options) as engine:
            yield engine, provider


def bodies(provider):
    return sorted((request["body"] for request in provider.requests), key=lambda body: body["seed"])


async def test_every_sample_is_a_request_of_its_own_that_leaves_nothing_to_the_servers_defaults():
    async with foreign(answer("hello")) as (engine, provider):
        made = await engine.generate(CHAT, TWO, CALL)
        assert await engine.describe() == {"model": "m", "max_model_len": 100, "foreign": True}
    assert made == [Completion(text="hello", finish_reason="stop", prompt_tokens=10, completion_tokens=5)] * 2
    first, second = bodies(provider)
    assert (first["seed"], second["seed"]) == (7, 8)
    assert first["messages"] == CHAT
    assert {request["path"] for request in provider.requests} == {"/v1/chat/completions"}
    plain = {"temperature": 0.6, "top_p": 0.95, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "max_tokens": 50}
    assert plain.items() <= first.items()
    assert (first["n"], first["skip_special_tokens"]) == (1, False)
    assert "chat_template_kwargs" not in first


@pytest.mark.parametrize(
    ("form", "message", "reason", "text"),
    [
        ("llama", {"text": "a</think>b"}, "stop", "<think>\na</think>b"),
        ("llama", {"text": "b", "reasoning": "a"}, "stop", "<think>\na</think>b"),
        ("llama", {"text": None, "reasoning": "a"}, "length", "<think>\na"),
        ("qwen3", {"text": "<think>\na</think>b<|im_end|>"}, "stop", "<think>\na</think>b"),
        ("qwen3", {"text": "b", "reasoning_content": "\na"}, "stop", "<think>\na</think>b"),
        ("qwen3", {"text": "", "reasoning_content": "\na"}, "stop", "<think>\na</think>"),
        ("qwen3", {"text": "b"}, "stop", "b"),
        (None, {"text": "b", "reasoning": "a"}, "stop", "<think>a</think>b"),
    ],
)
async def test_a_response_has_its_thinking_as_the_model_wrote_it(tmp_path, form, message, reason, text):
    options = {"model": save_policy(tmp_path, form)} if form else {}
    async with foreign(answer(finish_reason=reason, **message), **options) as (engine, provider):
        [completion] = await engine.generate(CHAT, TWO.model_copy(update={"n": 1}), CALL)
    assert (completion.text, completion.finish_reason) == (text, reason)
    [body] = bodies(provider)
    assert body.get("stop_token_ids") == ([end_of_turn(make_tokenizer(form), {})] if form else None)


def limited(limit):
    """Answers as vLLM does where a prompt leaves `limit` tokens."""

    def item(request):
        asked = request["body"].get("max_tokens", 1)
        if asked > limit:
            return failure(400, f"maximum context length is {10 + limit} tokens. However, you requested {asked}")
        return answer(usage=(10, 1))

    return item


@pytest.mark.parametrize("limit", [20, 0])
async def test_a_refusal_for_length_is_a_prompt_too_long_only_if_the_prompt_alone_is_refused(limit):
    async with foreign(limited(limit)) as (engine, provider):
        made = await engine.generate(CHAT, TWO, CALL)
    assert [completion.finish_reason for completion in made] == ["stop" if limit else "prompt_too_long"] * 2
    assert ["max_tokens" in request["body"] for request in provider.requests].count(False) == 2
    assert limit or "context length" in made[0].message


@pytest.mark.parametrize(
    ("script", "error", "named"),
    [
        ([failure(400, "top_k is not known")], UserError, "top_k"),
        ([(200, {}, "{}")], InfrastructureError, ": {}$"),
        ([(200, {}, "no")], InfrastructureError, ": no$"),
        ([answer(finish_reason="abort")], InfrastructureError, "abort"),
        ([failure(429), answer(finish_reason="content_filter")], None, ""),
    ],
)
async def test_what_is_not_an_answer_is_an_error_and_a_busy_server_is_asked_again(script, error, named):
    async with foreign(*script, attempts=len(script)) as (engine, _):
        call = engine.generate(CHAT, TWO.model_copy(update={"n": 1}), CALL)
        if error is None:
            [made] = await call
            assert (made.text, made.finish_reason) == ("", "error") and made.message
        else:
            with pytest.raises(error, match=named):
                await call


@pytest.mark.parametrize(
    ("models", "model", "named"),
    [("mo", None, "m, o"), ("mo", "p", "p"), ("m", "owner/p", "owner/p"), ("", None, "--model"), ("mo", "o", None)],
)
async def test_a_server_of_several_models_is_told_which(models, model, named):
    async with foreign(answer(), models=[{"id": name} for name in models], model=model) as (engine, _):
        if named is None:
            assert (await engine.describe())["model"] == model
            return
        with pytest.raises(UserError, match=named):
            await engine.describe()


# --- in this process and behind the app, with a vLLM that answers by a script


class FakeLLM:
    """The parts of `AsyncLLM` that engines use. Texts are the seeds; two conversations that say "hang" wait."""

    def __init__(self, tokenizer):
        self.tokenizer, self.model_config = tokenizer, SimpleNamespace(max_model_len=200)
        self.errored, self.reason, self.waiting = False, "stop", asyncio.Semaphore(0)
        self.aborted = asyncio.Semaphore(0)
        self.asked = []

    def get_tokenizer(self):
        return self.tokenizer

    async def generate(self, prompt, parameters, request):
        from vllm.v1.engine.exceptions import EngineDeadError

        if self.errored:
            raise EngineDeadError
        self.asked.append((prompt["prompt_token_ids"], parameters))
        if "hang" in self.tokenizer.decode(prompt["prompt_token_ids"]):
            self.waiting.release()
            try:
                await asyncio.Event().wait()
            finally:
                self.aborted.release()
        output = SimpleNamespace(text=str(parameters.seed), finish_reason=self.reason, token_ids=[1])
        yield SimpleNamespace(outputs=[output], num_cached_tokens=3)

    def shutdown(self):
        pass


@pytest.fixture
def model(request, tmp_path, monkeypatch):
    """A model's folder, for which vLLM starts a `FakeLLM`; its list has the last one that was started."""
    from vllm.v1.engine.async_llm import AsyncLLM

    started, form = [], getattr(request, "param", "llama")

    def from_engine_args(arguments):
        assert arguments.enforce_eager  # on a CPU
        started.append(FakeLLM(make_tokenizer(form)))
        return started[-1]

    monkeypatch.setattr(AsyncLLM, "from_engine_args", from_engine_args)
    monkeypatch.setattr(startup, "EarlyProcess", lambda: SimpleNamespace(for_work=None))
    monkeypatch.setattr(engine_app, "OpenAIRoutes", lambda *arguments: None)
    for name in ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    return SimpleNamespace(folder=save_policy(tmp_path, form), started=started)


@contextlib.asynccontextmanager
async def app(settings):
    """The app under uvicorn in this process; yields its URL."""
    api = engine_app.engine_api(engine_app.EngineService(settings))
    async with served(api) as url:
        yield url


@contextlib.asynccontextmanager
async def opened(kind, model, folder):
    """An engine of a kind, and whether it counts tokens."""
    async with contextlib.AsyncExitStack() as stack:
        if kind == "app":
            url = await stack.enter_async_context(app(EngineServiceSettings(model=model.folder)))
            engine = UrlEngine([url], model=model.folder)
        elif kind == "in this process":
            engine = VllmEngine(VllmSettings(model=model.folder))
        elif kind == "replay":
            yield ReplayEngine(write_lines(folder / "r.jsonl", [{"id": "p", "raw_responses": [["a", "b"]]}]))
            return
        elif kind == "torch":
            from transformers import Qwen3Config, Qwen3ForCausalLM

            from cobalt.engine.torch_policy import TorchPolicy

            tokenizer = make_tokenizer("qwen3")
            sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
            config = Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=16, **sizes)
            yield TorchPolicy(Qwen3ForCausalLM(config).eval(), tokenizer)
            return
        else:
            provider = stack.enter_context(serve(lambda request: answer(str(request["body"]["seed"]))))
            engine = UrlEngine([provider.url])
            if kind == "LiteLLM":
                from cobalt.engine.litellm_engine import LiteLLMEngine

                flags = ApiFlags(model_name="m", api_base=provider.url)
                engine = LiteLLMEngine(flags, Credentials({"OPENAI_API_KEY": "key"}))
        yield await stack.enter_async_context(engine)


KINDS = ["in this process", "app", "foreign", pytest.param("LiteLLM", marks=needs_api), "replay", "torch"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
async def test_every_kind_of_engine_keeps_the_protocol(kind, model, tmp_path):
    async with opened(kind, model, tmp_path) as engine:
        about = await engine.describe()
        assert about and json.loads(json.dumps(about)) == about == await engine.describe()
        both = await engine.generate(CHAT, TWO, CALL)
        assert [type(completion) for completion in both] == [Completion] * 2
        assert both[0].text != both[1].text
        assert await engine.generate(CHAT, TWO, CALL) == both, "a call and its seed decide the answer"
        assert all(completion.finish_reason in ("stop", "length") for completion in both)
        assert all(one.prompt_tokens and one.completion_tokens for one in both) is (kind != "replay")
        [second] = await engine.generate(CHAT, TWO.model_copy(update={"n": 1}), Call("p", 0, 1))
        assert kind != "replay" or second == both[1]


@pytest.mark.slow
async def test_an_engine_in_the_process_and_one_behind_a_url_answer_and_describe_themselves_alike(model):
    async def asked(engine):
        long = [{"role": "user", "content": "a" * 300}]
        return [await engine.describe(), *[await engine.generate(chat, TWO, CALL) for chat in (CHAT, long)]]

    async with VllmEngine(VllmSettings(model=model.folder)) as local:
        expected = await asked(local)
    [first, second] = expected[1]
    assert (second.text, second.finish_reason) == ("<think>\n8", "stop")
    assert (second.prompt_tokens, second.completion_tokens, second.cached_tokens) == (first.prompt_tokens, 1, 3)
    assert {completion.finish_reason for completion in expected[2]} == {"prompt_too_long"}
    async with app(EngineServiceSettings(model=model.folder)) as url, UrlEngine([url], model=model.folder) as remote:
        assert await asked(remote) == expected


@pytest.mark.parametrize("model", FORMS, indirect=True)
async def test_a_generation_stops_at_the_token_that_ends_a_turn(model):
    async with VllmEngine(VllmSettings(model=model.folder)) as engine:
        await engine.generate(CHAT, TWO, CALL)
    [llm] = model.started
    for tokens, parameters in llm.asked:
        parameters.update_from_generation_config({}, llm.tokenizer.eos_token_id)  # as vLLM does for every request
        assert end_of_turn(llm.tokenizer, {}) in {parameters.eos_token_id, *parameters.stop_token_ids}
        bos = llm.tokenizer.bos_token_id
        assert tokens.count(bos) == (bos is not None)


async def test_an_app_that_serves_another_model_or_wants_a_token_is_refused(model):
    settings = EngineServiceSettings(model=model.folder, token=TOKEN, max_completions=2)
    async with app(settings) as url:
        for token, named, error in ((None, None, "token"), (TOKEN, "another", "another")):
            async with UrlEngine([url], token, model=named, attempts=1) as engine:
                with pytest.raises(UserError, match=error):
                    await engine.generate(CHAT, TWO, CALL)
        async with UrlEngine([f"{url}/v1/"], TOKEN, attempts=1) as engine:
            assert len(await engine.generate(CHAT, TWO, CALL)) == 2
            assert len(await engine.generate([{"role": "user", "content": "\ud800"}], TWO, CALL)) == 2
            with pytest.raises(UserError, match="'n'"):
                await engine.generate(CHAT, TWO.model_copy(update={"n": 3}), CALL)
        bad = {"messages": []}, {"temperature": -1}, {"temperature": float("nan")}, {"no_field": 1}
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False) as client:
            for fields, page, status in (*((fields, {}, 422) for fields in bad), ({}, {"Origin": "http://a"}, 403)):
                refused = await client.post(url, content=json.dumps({"messages": CHAT} | fields), headers=page)
                assert (refused.status_code, bool(refused.json()["error"])) == (status, True), fields


async def test_a_client_that_has_gone_ends_its_generations(model):
    async with app(EngineServiceSettings(model=model.folder)) as url, UrlEngine([url]) as engine:
        [llm] = model.started
        call = asyncio.create_task(engine.generate([{"role": "user", "content": "hang"}], TWO, CALL))
        async with asyncio.timeout(10):
            for _ in range(TWO.n):
                await llm.waiting.acquire()
            call.cancel()
            for _ in range(TWO.n):
                await llm.aborted.acquire()
        assert len(await engine.generate(CHAT, TWO, CALL)) == 2


async def test_a_completion_that_was_aborted_and_an_engine_that_died_are_failures(model):
    async with app(EngineServiceSettings(model=model.folder)) as url, UrlEngine([url], attempts=1) as engine:
        [llm] = model.started
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/health")).status_code == 200
            await engine.generate(CHAT, TWO, CALL)
            assert 'cobalt_engine_completions_total{reason="stop"} 2.0' in (await client.get("/metrics")).text
            llm.reason = "abort"
            with pytest.raises(InfrastructureError, match="abort"):
                await engine.generate(CHAT, TWO, CALL)
            llm.errored = True
            assert (await client.get("/health")).status_code == 503
        with pytest.raises(InfrastructureError, match=f"{url}.*vLLM"):
            await engine.generate(CHAT, TWO, CALL)


async def test_a_dead_engine_of_this_process_ends_the_run_and_leaves_its_log(model, tmp_path):
    log = tmp_path / "engine.log"
    async with VllmEngine(VllmSettings(model=model.folder), log=log):
        assert log.exists()
    assert not log.exists()
    async with VllmEngine(VllmSettings(model=model.folder), log=log) as engine:
        model.started[-1].errored = True
        with pytest.raises(ServiceDown, match=str(log)):
            await engine.generate(CHAT, TWO, CALL)
    assert log.exists()


# --- which engine a command uses


def test_an_engine_is_behind_a_url_if_there_is_one(model):
    none = {"COBALT_ENGINE_URL": None, "COBALT_HTTP": None}
    for variables, urls in (
        ({}, []),
        ({}, ["http://a"]),
        ({"COBALT_ENGINE_URL": "http://a http://b"}, []),
        ({"COBALT_HTTP": "http://a:8"}, []),
    ):
        here = not variables and not urls
        with environment_variables(**none | variables):
            assert isinstance(open_vllm_or_url(model=model.folder, urls=urls), VllmEngine if here else UrlEngine)
            with pytest.raises(UserError, match="num_replicas" if here else "--engine"):
                open_vllm_or_url(model=model.folder, urls=urls, settings=["num_replicas=2"])
    with environment_variables(**none), pytest.raises(UserError, match="--engine_url"):
        open_vllm_or_url()
