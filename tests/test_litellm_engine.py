"""Proprietary models: limits, retries, costs and secrets, over real HTTP against a provider that misbehaves."""

import asyncio
import json
import os
import sys
import threading
import time

import pytest
from outside import run_commands
from provider import answer, failure, serve
from serving import SIGNALS, running, until
from support import ROOT, FakeJudge, needs_api, square_problem, write_lines

from cobalt.engine import Call, GenerationSettings
from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.call_log import CallLog, calls_path
from cobalt.engine.litellm_engine import LiteLLMEngine
from cobalt.engine.provider_access import Credentials
from cobalt.engine.provider_answers import ProviderFailure
from cobalt.rollout.api import ApiSampleSettings
from cobalt.rollout.single_turn import sample
from cobalt.stage.errors import InfrastructureError, RequestRefused, ServiceDown, SpendLimitReached, UserError
from cobalt.stage.records import read_records

pytestmark = [needs_api, pytest.mark.slow]

MODEL = "gpt-5-mini-2025-08-07"
SECRET, ANOTHER = "sk-very-secret-0123456789", "hf-another-9876543210"
SAMPLING = GenerationSettings(temperature=1, top_p=1, max_tokens=100, n=1, seed=0)
HELLO = [{"role": "user", "content": "hello"}]


def engine(provider, log=None, monkeypatch=None, model="", **settings):
    """An engine of OpenAI's API; with a model, of a provider that LiteLLM reaches by code of its own."""
    name = model.partition("/")[0].upper() or "OPENAI"
    asked = {"request_timeout": 5, "attempts": 3}
    if model:
        monkeypatch.setenv(f"{name}_API_BASE", provider.url)
        asked |= {"model_name": model, "reasoning_effort": "default"}
    else:
        asked |= {"model_name": MODEL, "api_base": provider.url}
    credentials = Credentials({f"{name}_API_KEY": SECRET, "HF_TOKEN": ANOTHER})
    return LiteLLMEngine(ApiFlags(**asked | settings), credentials, log, longest_backoff=0.05)


async def ask(engine, sampling=SAMPLING, call=Call(0, 0), conversation=HELLO):  # noqa: B008
    async with engine:
        return await engine.generate(conversation, sampling, call)


async def test_a_completion_has_text_and_tokens_and_a_request_what_the_model_takes(caplog):
    half = SAMPLING.model_copy(update={"top_p": 0.5, "chat_template_thinking": "off"})
    with serve(answer("four", usage=(1000, 2000))) as provider:
        one = engine(provider)
        [completion] = await ask(one)
        for number in range(3):
            await ask(one, half, Call(number, 0))
        await ask(engine(provider, model_name="my-model"), half)
    assert (completion.text, completion.finish_reason) == ("four", "stop")
    assert (completion.prompt_tokens, completion.completion_tokens) == (1000, 2000)
    request = provider.requests[0]
    assert (request["path"], request["headers"]["authorization"]) == ("/v1/chat/completions", f"Bearer {SECRET}")
    bodies = [request["body"] for request in provider.requests]
    sent = {"messages": HELLO, "temperature": 1, "max_completion_tokens": 100, "reasoning_effort": "medium"}
    assert sent.items() <= bodies[0].items() and "n" not in bodies[0]
    assert [body.get("top_p") for body in bodies] == [None, None, None, None, 0.5]
    [said] = [record.message for record in caplog.records if "top_p=0.5" in record.message]
    assert MODEL in said, "what is left out is said once"
    # The switch for thinking goes to servers of one's own.
    assert [body.get("chat_template_kwargs") for body in bodies] == [None, *[{"enable_thinking": False}] * 4]
    named = LiteLLMEngine(ApiFlags(model_name=MODEL), Credentials({"OPENAI_API_KEY": SECRET}))
    assert "extra_body" not in named.parameters(half)
    assert "chat_template_kwargs" in caplog.text


async def test_retry_after_delays_all_requests():
    with serve(failure(429, headers={"Retry-After": "4"}), answer()) as provider:
        async with engine(provider) as one:
            first = asyncio.create_task(one.generate(HELLO, SAMPLING, Call(0, 0)))
            await until(lambda: len(provider.requests) >= 1)
            await asyncio.sleep(3)
            await one.generate(HELLO, SAMPLING, Call(1, 0))
            await first
    assert all(later - provider.times[0] >= 4 for later in provider.times[1:])


async def test_requests_in_flight_are_bounded_over_problems_and_samples_together():
    open_now, most, together = [], [], threading.Barrier(3, timeout=20)

    def counted(request):
        open_now.append(request)
        most.append(len(open_now))
        together.wait()
        time.sleep(0.1)
        open_now.remove(request)
        return answer("four")

    with serve(counted) as provider:
        async with engine(provider, concurrent_requests=3) as one:
            calls = (one.generate(HELLO, SAMPLING.model_copy(update={"n": 4}), Call(i, 0)) for i in range(3))
            completions = await asyncio.gather(*calls)
    assert ([len(of_call) for of_call in completions], len(most), max(most)) == ([4, 4, 4], 12, 3)


async def test_at_the_end_of_a_run_answers_in_flight_are_kept_and_no_more_requests_are_made(tmp_path):
    ended = threading.Event()

    async def run(provider, log):
        one = engine(provider, log, concurrent_requests=2, prompt_price=0, completion_price=1_000_000)
        async with one:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(one.generate(HELLO, SAMPLING.model_copy(update={"n": 4}), Call(0, 0)))
                    await until(lambda: len(provider.requests) >= 2)
                    raise ServiceDown("as another part of the run raises it")
            finally:  # the loop's next turn comes when the engine's end waits for its requests
                asyncio.get_running_loop().call_soon(ended.set)

    with serve(lambda _: ended.wait(20) and answer(usage=(1, 1))) as provider, CallLog(tmp_path / "r.jsonl") as log:
        with pytest.raises(ExceptionGroup):
            await run(provider, log)
        assert (len(provider.requests), log.spent) == (2, 2)


async def test_requests_are_spread_over_the_minute():
    with serve(answer()) as provider:
        one = engine(provider, requests_per_minute=600)
        await ask(one)  # the first request of a process takes long
        started = time.monotonic()
        await ask(one, SAMPLING.model_copy(update={"n": 6}))
    assert all(at - started >= 0.1 * number for number, at in enumerate(sorted(provider.times[1:])))


def failed_inside(error=None, *, text="```python\nprint(1", reason="error", **body):
    """A response with status 200 whose choice, or whole body, reports that the provider failed."""
    status, headers, content = answer(text, reason)
    content = json.loads(content) | body
    if error is not None:
        content["choices"][0]["error"] = error
    return status, headers, json.dumps(content)


def choices(listed):
    """A response with status 200 and these choices."""
    return 200, {}, json.dumps(json.loads(answer()[2]) | {"choices": listed})


def claude(status=200, kind="", said=""):
    """A message, or an error, as Anthropic's API sends it."""
    if status != 200:
        return status, {}, json.dumps({"type": "error", "error": {"type": kind, "message": said}})
    content = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "four"}]
    body = {"id": "m", "type": "message", "role": "assistant", "model": "c", "stop_reason": "end_turn"}
    return 200, {}, json.dumps(body | {"usage": {"input_tokens": 3, "output_tokens": 4}, "content": content})


TOO_MANY = [
    "max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you provided 8192.",
    "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for the model",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]",
    "The maximum tokens you requested exceeds the model limit of 4096. Try again with a lower value.",
]
TOO_LONG = [
    "This model's maximum context length is 10000 tokens. However, your messages resulted in 12000 tokens.",
    "This model's maximum context length is 10000 tokens. However, you requested 8192 output tokens and your prompt"
    " contains at least 10001 input tokens, for a total of at least 18193 tokens.",
    "The decoder prompt (length 12000) is longer than the maximum model length of 10000.",
    "The engine prompt length 12000 exceeds the max_model_len 10000. Please reduce prompt.",
    "max_tokens=8192 cannot be greater than max_model_len=max_total_tokens=4096. Please request fewer output tokens.",
    "prompt is too long: 208310 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 12000 + 8192 > 10000, decrease input length or `max_tokens`",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 10000. Given: 12000 `inputs` tokens and 8192"
    " `max_new_tokens`",
    "`inputs` must have less than 10000 tokens. Given: 12000",
    "request (12000 tokens) exceeds the available context size (10000 tokens), try increasing it",
    "Prompt contains 12000 tokens and 0 draft tokens, too large for model with 10000 maximum context length",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    "Input is too long for requested model.",
]
LONG = SAMPLING.model_copy(update={"max_tokens": 8192})
FLAGGED = {"reasons": ["violence"], "flagged_input": "an insufficient balance of the account", "provider_name": "p"}
ROUTER, CLAUDE, INVALID = "openrouter/a/b", "anthropic/claude-sonnet-4-5", "invalid_request_error"
RETRIED, LENGTH, KEY = "retried", "prompt_too_long", "OPENAI_API_KEY"
HTML = {"Content-Type": "text/html"}

# What a provider sends, and what becomes of the call: the same request again, which then succeeds; a record with a
# finish reason and a part of its message; or the end of the run with a part of its sentence.
ENDS = [
    # Faults that pass.
    *((failure(429, headers={"Retry-After": said}), RETRIED, "") for said in ("0", "Wed, 21 Oct 2015 07:28:00 GMT")),
    (failure(408), RETRIED, ""),
    ("hang", RETRIED, ""),
    ("cut", RETRIED, ""),
    ((200, {}, "{nope"), RETRIED, ""),
    ((200, HTML, "<html>busy</html>"), RETRIED, ""),
    (failure(429, "Rate limit reached for requests per min. Visit your account page to learn more."), RETRIED, ""),
    (failure(429, "You exceeded your current quota, please check your plan. Retry in 0.01 s."), RETRIED, ""),
    (failure(529, "Overloaded"), RETRIED, ""),
    (failure(429, headers={"Retry-After": "86400"}), ServiceDown, "86400"),
    (failure(500, "on fire"), ProviderFailure, "on fire"),
    # The same, reported inside an answer.
    (failed_inside(), RETRIED, ""),
    (failed_inside({"code": 502, "message": "Upstream idle timeout"}), RETRIED, ""),
    (failed_inside({"code": 429, "message": "slow down"}, reason="stop"), RETRIED, ""),
    (failed_inside({"code": "server_error", "message": "on fire"}, reason=None), RETRIED, ""),
    (failed_inside(reason="stop", error={"type": "overloaded_error", "message": "busy"}), RETRIED, ""),
    (failed_inside(reason="stop", error="the worker died"), RETRIED, ""),
    (failed_inside(reason="abort"), RETRIED, ""),
    (failed_inside(reason="network_error"), RETRIED, ""),
    (failed_inside({"code": 400, "message": "bad tool"}), InfrastructureError, ""),
    (choices(7), RETRIED, ""),
    (choices([{"message": {"role": "assistant", "content": 7}}]), RETRIED, ""),
    # Answers, with a program or without one.
    (failed_inside(text="four", reason="stop", error={"message": "", "code": None}), "stop", ""),
    (answer("four", reasoning_content="hm"), "stop", ""),
    (answer(None, "length"), "length", ""),
    (answer(""), "stop", ""),
    (answer(None, refusal="I will not"), "stop", "I will not"),
    (answer("four", "content_filter"), "error", ""),
    (answer("four", "SAFETY"), "error", ""),
    (answer("four", "max_tokens"), "length", ""),
    (choices([]), "error", ""),
    # Conversations that leave no room by themselves, or are refused for their content.
    *((failure(status, TOO_LONG[0]), LENGTH, "10000") for status in (400, 500)),
    (failure(400, "Invalid prompt: your prompt was flagged", code="invalid_prompt"), "error", "flagged"),
    (failure(403, "m requires moderation. Your input was flagged. No credits were charged.", code=403), "error", "fla"),
    (failure(403, "Forbidden", code=403, metadata=FLAGGED), "error", "Forbidden"),
    (failure(403, "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_X"), "error", "usage guidelines"),
    (failure(400, "Filtered due to the content management policy", code="content_filter"), "error", "policy"),
    (failure(400, "Input may contain inappropriate content.", code="data_inspection_failed"), "error", "inappropriate"),
    # What the user must fix: a key, an account, a model, `--max_tokens`.
    (failure(401, f"Incorrect API key provided: {SECRET} or {ANOTHER}"), RequestRefused, KEY),
    (failure(404, "no such model"), RequestRefused, MODEL),
    (failure(429, "pay", code="insufficient_quota"), RequestRefused, KEY),
    (failed_inside({"code": 401, "message": "no such key"}), RequestRefused, ""),
    (failed_inside(reason="stop", error={"code": "insufficient_quota", "message": "pay"}), RequestRefused, ""),
    (failure(429, "Insufficient balance or no resource package", code="1113"), RequestRefused, KEY),
    (failure(402, "This requires more credits, or fewer max_tokens. You can only afford 12."), RequestRefused, KEY),
    (failure(429, "You exceeded your quota", type="insufficient_quota", code=None), RequestRefused, KEY),
    (failure(400, "Your credit balance is too low to access the API. Go to Plans & Billing"), RequestRefused, KEY),
    (failure(403, "Your account has been suspended for violating our usage policies"), RequestRefused, KEY),
    (failure(403, "Forbidden: account flagged for moderation"), RequestRefused, KEY),
    (failure(403, "you are not allowed to sample from this model"), RequestRefused, KEY),
    *((failure(400, said), RequestRefused, "--max_tokens") for said in TOO_MANY),
    (failure(400, "max_tokens or output limit was reached. Try again with higher max_tokens"), InfrastructureError, ""),
]
ENDS_ELSEWHERE = [
    (CLAUDE, claude(), "stop", ""),
    (CLAUDE, claude(529, "overloaded_error", "Overloaded"), RETRIED, ""),
    (CLAUDE, claude(400, INVALID, TOO_MANY[1]), RequestRefused, ""),
    (CLAUDE, claude(400, INVALID, TOO_LONG[5]), RETRIED, ""),
    (ROUTER, failure(400, TOO_LONG[1], code=400), LENGTH, "10000"),
    (ROUTER, failure(402, "Insufficient credits", code=402), RequestRefused, ""),
    (ROUTER, failure(400, "no", code=400, metadata={"raw": json.dumps({"error": TOO_MANY[0]})}), RequestRefused, ""),
]


@pytest.mark.parametrize(("model", "answers", "end", "said"), [*(("", *row) for row in ENDS), *ENDS_ELSEWHERE])
async def test_each_answer_of_a_provider_is_retried_recorded_or_ends_the_run(
    tmp_path, monkeypatch, model, answers, end, said
):
    result = tmp_path / "r.jsonl"
    rest = [] if end != RETRIED else [claude() if model == CLAUDE else answer("four")]
    with serve(answers, *rest) as provider, CallLog(result) as log:
        one = engine(provider, log, monkeypatch, model, request_timeout=5)
        if isinstance(end, str):
            [completion] = await ask(one, LONG)
            assert completion.finish_reason == ("stop" if end == RETRIED else end)
            assert said in completion.message and bool(completion.message) == (end == "error" or not completion.text)
            assert completion.text == "four" if end == RETRIED else completion.text in ("", "four")
            if end == RETRIED:
                assert [record["completion"]["text"] for record in read_records(calls_path(result))] == ["four"]
        else:
            with pytest.raises(end) as caught:
                await ask(one, LONG)
            assert isinstance(caught.value, UserError) is (end is RequestRefused)
            assert said in str(caught.value)
            assert not any(word in str(caught.value) for word in (SECRET, ANOTHER, "Traceback"))
    assert len(provider.requests) == {RETRIED: 2, LENGTH: 2, ProviderFailure: 3}.get(end, 1)


def text(said):
    return {"type": "text", "text": said}


THOUGHT = "<think>\nhm\n</think>\n\n```python\nprint('</think>')\n```\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        *(
            (said, said)
            for said in (THOUGHT, THOUGHT.replace("think>\n", "thinking>\n"), "<think></think>4", "hm</think>4")
        ),
        ([text("four")], "four"),
        ([{"type": "thinking", "thinking": [text("hm")]}, text("fo"), text("ur")], "four"),
        ([{"type": "reasoning", "text": "hm"}, {"type": "output_text", "text": "four"}], "four"),
        ([{"type": "thinking", "thinking": "hm", "signature": "s"}, "four"], "four"),
        ([{"text": "four"}, {"type": "reference", "reference_ids": [1]}], "four"),
        (text("four"), "four"),
        ([{"type": "thinking", "thinking": [text("hm")]}], ""),
        ([], ""),
    ],
)
@pytest.mark.parametrize("model", ["", "openrouter/a/b", "deepseek/d"])
async def test_a_response_is_the_text_as_generated_or_that_of_its_parts_and_is_paid_for_once(
    tmp_path, monkeypatch, model, content, expected
):
    prices = {"prompt_price": 1.0, "completion_price": 1.0}
    with serve(answer(content, usage=(1000, 2000))) as provider, CallLog(tmp_path / "r.jsonl") as log:
        [completion] = await ask(engine(provider, log, monkeypatch, model, **prices))
        assert log.spent == pytest.approx(0.003)
    assert (completion.text, completion.finish_reason, len(provider.requests)) == (expected, "stop", 1)
    assert (completion.prompt_tokens, completion.completion_tokens) == (1000, 2000)
    assert bool(completion.message) == (not expected)


@pytest.mark.parametrize(
    ("said", "rest"), [*((said, None) for said in TOO_LONG), (TOO_LONG[6].replace("12000 +", "9000 +"), 1000)]
)
async def test_an_answer_takes_what_the_prompt_leaves_of_the_context(said, rest):
    with serve(failure(400, said), answer("four")) as provider:
        [completion] = await ask(engine(provider), LONG)
    assert completion.text == "four"
    assert [request["body"].get("max_completion_tokens") for request in provider.requests] == [8192, rest]


async def test_a_server_that_is_not_there_is_named():
    with serve(answer()) as provider:
        gone = provider.url
    with pytest.raises(ServiceDown, match=f"{gone}.*--api_base"):
        await engine(provider).describe()


async def test_a_call_that_was_paid_for_is_not_paid_for_again(tmp_path):
    result = tmp_path / "r.jsonl"
    four = SAMPLING.model_copy(update={"n": 4})
    with serve(answer("one"), answer("two"), failure(500)) as provider:
        with CallLog(result) as log, pytest.raises(InfrastructureError):
            await ask(engine(provider, log), four)
        before = len(provider.requests)
        provider.script = [answer("late", usage=(10, 10))]
        with CallLog(result) as log:
            texts = [completion.text for completion in await ask(engine(provider, log), four)]
            assert sorted(texts) == ["late", "late", "one", "two"]
            assert len(provider.requests) == before + 2
            assert log.spent == pytest.approx(sum(r["completion"]["cost"] for r in read_records(calls_path(result))))
            # Another conversation, other sampling, another part of the run: each is another call.
            await ask(engine(provider, log), four, conversation=[{"role": "user", "content": "bye"}])
            await ask(engine(provider, log), four.model_copy(update={"max_tokens": 7}))
            await ask(engine(provider, log), four, Call(0, 1))
            assert len(provider.requests) == before + 2 + 12
    assert [record["usage"]["completion_tokens"] for record in read_records(calls_path(result))][:2] == [5, 5]
    write_lines(calls_path(result), [{"id": "of another file"}])
    with pytest.raises(UserError, match=calls_path(result).name):
        CallLog(result)


async def test_a_spend_limit_needs_a_price_and_a_usage():
    with serve(answer(usage=None)) as provider:
        with pytest.raises(UserError, match="--prompt_price"):
            engine(provider, model_name="my-model", spend_limit=1)
        with pytest.raises(SpendLimitReached, match="usage"):
            await ask(engine(provider, spend_limit=1))


USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 500,
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 300},  # which are among those of the answer
}
PRICE = 600 * 0.25e-6 + 400 * 0.025e-6 + 500 * 2e-6  # by the model's list


@pytest.mark.parametrize(
    ("flags", "answered", "usage", "cost"),
    [
        ({}, "m", USAGE, PRICE),
        ({}, "m", None, None),
        ({"model_name": "my-deployment"}, MODEL, USAGE, PRICE),
        ({"model_name": "my-deployment"}, "m", USAGE, None),
        ({"model_name": "my-deployment", "prompt_price": 1, "completion_price": 2}, "m", USAGE, 2000e-6),
    ],
)
async def test_a_cost_is_by_the_flags_or_the_list_where_the_cache_has_its_own_price_and_a_deployment_that_of_its_model(
    flags, answered, usage, cost
):
    status, headers, body = answer(usage=None)
    said = json.loads(body) | {"model": answered} | ({} if usage is None else {"usage": usage})
    with serve((status, headers, json.dumps(said))) as provider:
        [completion] = await ask(engine(provider, **flags))
    assert completion.cost == (cost if cost is None else pytest.approx(cost))


def bedrock(monkeypatch, provider, flags=None):
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_REGION_NAME", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    if provider:
        monkeypatch.setenv("AWS_BEDROCK_RUNTIME_ENDPOINT", provider.url.removesuffix("/v1"))
    settings = ApiFlags(model_name="bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", attempts=1)
    return LiteLLMEngine(settings, Credentials(os.environ | (flags or {})))


async def test_bedrock_is_reached_with_signed_requests(monkeypatch, caplog):
    message = {"role": "assistant", "content": [{"text": "four"}]}
    usage = {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110}
    reply = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}
    keys = {"AWS_ACCESS_KEY_ID": "AKIASECRETSECRET", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION_NAME": "us-east-1"}
    with serve((200, {}, json.dumps(reply))) as provider:
        one = bedrock(monkeypatch, provider, keys)
        [completion] = await ask(one, SAMPLING.model_copy(update={"max_tokens": 8000}))
    assert completion.text == "four"
    assert completion.cost == pytest.approx(1.1 * (100 * 3e-6 + 10 * 15e-6))  # the regional price
    [request] = provider.requests
    assert request["path"].startswith("/model/us.anthropic.claude-sonnet-4-5")
    headers = {name.lower(): value for name, value in request["headers"].items()}
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIASECRETSECRET/")
    assert SECRET not in json.dumps(provider.requests)
    assert "seed=" in caplog.text
    assert "AWS_SECRET_ACCESS_KEY" not in os.environ


@pytest.mark.parametrize("name", ["AZURE_KEY", "GITHUB_TOKEN", "CLIENT_SECRET", "AWS_ACCESS_KEY_ID", "DB_PASSWORD"])
def test_no_message_has_a_secret_of_the_environment(name):
    credentials = Credentials({name: SECRET, "HOME": "/home/user"})
    assert credentials.scrub(f"/home/user: {SECRET} is wrong") == "/home/user: *** is wrong"


AWS_NEEDS = {"credentials": {}, "nobodys": {"PROFILE": "nobodys"}, "AWS_SECRET_ACCESS_KEY": {"ACCESS_KEY_ID": "A"}}


@pytest.mark.parametrize("named", AWS_NEEDS)
async def test_what_aws_needs_is_named_before_any_request(monkeypatch, named):
    one = bedrock(monkeypatch, None, {"AWS_REGION_NAME": "us-east-1"})
    for name, value in AWS_NEEDS[named].items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with pytest.raises(RequestRefused, match=f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.*{named}"):
        await ask(one)


BAD_FLAGS = [  # what a command's last line names, and its flags
    ("'no-such'", "--model_name", "no-such"),
    ("''", "--model_name", ""),
    *(("--api_base", "--api_base", f"{url}/v1") for url in ("localhost:8000", "http://h:p", f"http://u:{SECRET}@h")),
    ("spend_limit", "--spend_limit", "0"),
    ("requests_per_minute", "--requests_per_minute", "-1"),
    (KEY,),
    (KEY, "--openai_api_key", "sk-one\nsk-two"),
]


def test_bad_flags_and_an_empty_key_are_named():
    commands = [(ROOT, ["litellm_engine.py", *flags]) for _, *flags in BAD_FLAGS]
    for (named, *flags), (code, _, said) in zip(BAD_FLAGS, run_commands(commands, OPENAI_API_KEY=" \n"), strict=True):
        *warned, last = said.splitlines()
        assert (code, len(warned)) == (2, "--openai_api_key" in flags) and named in last and SECRET not in said, said


RIGHT, WRONG = (f"```python\nprint(int(input()) {square})\n```" for square in ("** 2", "* 2"))


@pytest.mark.sandbox
def test_the_commands_run_over_http_with_costs_and_without_secrets_in_what_they_leave(tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(number) for number in range(2)])

    def model(request):
        if len(request["body"]["messages"]) == 1:
            return answer([text("Yes")])
        if len(request["body"]["messages"]) == 2:
            return answer(WRONG, usage=(100, 50))
        if provider.requests.count(request) == 1:
            return failure(500, f"trouble with {SECRET}")
        return answer(RIGHT, usage=(300, 60))

    single, multi = tmp_path / "s.jsonl", tmp_path / "m.jsonl"
    with serve(model) as provider:
        flags = ["--api_base", provider.url, "--openai_api_key", SECRET, "--aws_region_name", "eu"]
        commands = [
            ["litellm_engine.py", *flags],
            ["run_single_turn_litellm.py", "-i", str(problems), "-o", str(single), "-n", "2", "--seed", "3", *flags],
            ["run_multi_turn_litellm.py", "-i", str(single), "-o", str(multi), "--turns", "2", "--seed", "3", *flags],
        ]
        variables = {"COBALT_JUDGE_CONCURRENCY": "1", "OPENAI_API_KEY": ANOTHER}
        ended = run_commands([(ROOT, words) for words in commands], **variables)
    assert [code for code, *_ in ended] == [0, 0, 0], ended
    [(_, checked, warned), *_] = ended
    assert f"{MODEL} (openai): 'Yes', stop" in checked
    assert "10 prompt tokens, 5 completion tokens, $0.000012" in checked
    assert "OPENAI_API_KEY" in warned and "AWS_REGION" not in warned
    assert {request["headers"]["authorization"] for request in provider.requests} == {f"Bearer {SECRET}"}
    assert "ydantic" not in warned and "Warning" not in warned
    record = read_records(multi)[0]
    assert record["raw_responses"] == [[WRONG] * 2, [RIGHT] * 2, [RIGHT] * 2]
    assert record["public_pass_rates"] == [[0.5] * 2, [1.0] * 2, [1.0] * 2]
    assert record["prompt_tokens"] == [[100] * 2, [300] * 2, [300] * 2]
    assert record["costs"][0] == pytest.approx([100 * 0.25e-6 + 50 * 2e-6] * 2)
    assert record["costs"][2] == pytest.approx([300 * 0.25e-6 + 60 * 2e-6] * 2)
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b'"command"' in left and SECRET.encode() not in left
    assert SECRET not in json.dumps(ended)


@pytest.mark.parametrize("limit", [5, 6])  # $4 are spent before the third problem, and $6 after it
async def test_a_run_that_reaches_its_spend_limit_stops_and_goes_on_with_a_higher_one(tmp_path, monkeypatch, limit):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(number) for number in range(4)])
    output = tmp_path / "s.jsonl"

    async def run(limit):
        prices = {"prompt_price": 0, "completion_price": 1_000_000, "spend_limit": limit}
        files = {"input_file": problems, "output_file": output, "num_completions": 2, "concurrency": 1}
        settings = ApiSampleSettings(**files, **prices, api_base=provider.url)
        return await sample(settings, judge=FakeJudge())

    with serve(answer(WRONG, usage=(1, 1))) as provider:
        with pytest.raises(SpendLimitReached, match=rf"\${limit} .*--spend_limit"):
            await run(limit)
        assert [record["id"] for record in read_records(output)] == [0, 1, 2]
        await run(9)
        assert len(provider.requests) == 8
    assert [record["costs"] for record in read_records(output)] == [[1.0, 1.0]] * 4


@pytest.mark.sandbox
def test_an_interrupt_ends_a_run_at_once_and_keeps_what_is_finished(tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(number) for number in range(3)])
    output = tmp_path / "s.jsonl"
    with serve(answer("```python\nprint(1)\n```"), "hang") as provider:
        words = ["-i", problems, "-o", output, "-n", "1", "--concurrency", "1", "--api_base", provider.url]
        with running(tmp_path, *words, program=(sys.executable, "run_single_turn_litellm.py")) as command:
            command.wait_for(lambda: len(provider.requests) == 2)
            code, said = command.end(SIGNALS[0])  # the request that hangs would take longer
    assert code == 130 and said[-1].startswith("interrupted"), said
    assert [record["id"] for record in read_records(output)] == [0]
