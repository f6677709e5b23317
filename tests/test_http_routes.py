"""HTTP routes of the apps, without Ray: who is admitted, how much may be sent, and what takes no sandbox."""

import asyncio
import json
import time
import tracemalloc

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from serving import until

from cobalt.judge.wire import JudgeRequest, values_of
from cobalt.serving.http_guard import MOST_VALUES, Guard, Refused
from cobalt.serving.service_api import service_api
from cobalt.serving.settings import HttpSettings, ServiceSettings
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.rows import JsonMeasure, TooManyValues

TOKEN = "a-token-of-decent-length"


def guard(max_bytes=1024, max_values=MOST_VALUES, **settings):
    return Guard(HttpSettings(max_request_bytes=max_bytes, **settings), "X_", max_values)


OPEN, LOCKED = guard(), guard(token=TOKEN)


def request(body: bytes = b"{}", headers=(), client="127.0.0.1", pieces: int = 1, ends: bool = True) -> Request:
    """A request as Serve hands it to an app; its body may never end."""
    step = max(1, -(-len(body) // pieces))
    parts = [body[start : start + step] for start in range(0, len(body), step)] or [b""]

    async def receive():
        await asyncio.sleep(0)
        if not parts:
            await asyncio.Event().wait()
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts) or not ends}

    named = [(name.lower().encode(), value.encode()) for name, value in headers]
    sender = (client, 4711) if client else None
    return Request({"type": "http", "method": "POST", "path": "/", "headers": named, "client": sender}, receive)


async def _read(app: Guard, asked: Request) -> object:
    async with app.body(asked) as value:
        return value


def status(app: Guard, asked: Request) -> int:
    try:
        asyncio.run(_read(app, asked))
    except Refused as refused:
        return refused.status_code
    return 200


PROXY = ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host", "X-Forwarded-Proto"]
PROXY += ["X-Client-IP", "True-Client-IP", "CF-Connecting-IP"]
OF_THIS_MACHINE = ["localhost", "LocalHost.:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "[::ffff:127.0.0.1]"]
OF_OTHERS = ["evil.example", "evil.example:8000", "localhost.evil.example", "", "127.0.0.1.evil.example"]
OF_OTHERS += ["evil.example@localhost", "192.0.2.1:8000", "[2001:db8::1]"]
PAGE = {"Origin": ("http://example.org", "null"), "Sec-Fetch-Site": ("cross-site", "same-origin")}
WRONG = ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer \xff")
# Status without a token, and of a guard with one to a request that sends it.
SENT = [
    *((200, 200, [("Host", name)]) for name in OF_THIS_MACHINE),
    *((403, 200, [*first, ("Host", name)]) for first in ([], [("Host", "localhost")]) for name in OF_OTHERS),
    *((403, 200, [(name, "127.0.0.1")]) for name in PROXY),
    *((403, 403, [(name, value)]) for name, values in PAGE.items() for value in values),
]


@pytest.mark.parametrize(("without", "expected", "headers"), SENT)
def test_without_a_token_only_names_of_this_machine_are_answered_no_proxies_and_never_web_pages(
    without, expected, headers
):
    assert status(OPEN, request(headers=headers)) == without
    assert status(LOCKED, request(headers=[*headers, ("Authorization", f"Bearer {TOKEN}")])) == expected


CLIENTS = dict.fromkeys(("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"), 200)
CLIENTS |= dict.fromkeys(("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "testclient", ""), 403)


def test_only_this_machine_needs_no_token_and_where_one_is_set_everybody_does():
    for client, expected in CLIENTS.items():
        assert status(OPEN, request(client=client)) == expected, client
        for value in (None, *WRONG, f"Bearer {TOKEN}", f"bearer {TOKEN}"):
            sent = [] if value is None else [("Authorization", value)]
            right = value is not None and value not in WRONG
            assert status(LOCKED, request(headers=sent, client=client)) == (200 if right else 401), (client, value)


LEVELS = [(b"[" * 100 + b"]" * 100, 200), (b"[" * 101 + b"]" * 101, 400), (b'{"a":' * 101 + b"0" + b"}" * 101, 400)]
SURROGATES = [b'{"code": "\xed\xa0\x80"}', b'{"code": "\\ud800"}', b'{"files": {"\\udfff": ""}}', b'{"\\ud800": 1}']
BODIES = [
    # Values: at most 1000.
    (b"[" + b"0," * 998 + b"0]", 200),
    *((b"[" + unit * 1000 + b'""]', 422) for unit in (b"0,", b"[],", b"{},", b'"",')),
    (b'"' * 10_000, 422),
    (json.dumps('[{,"\\' * 500_000).encode(), 200),
    (json.dumps(["1, 2, [3]" * 400_000]).encode(), 200),
    (b"1." + b"0" * (3 << 20), 200),
    *LEVELS,
    *((unit * (4 << 20), 400) for unit in (b"]", b"[", b"\\")),
    # Strict JSON in UTF-8.
    *((body, 400) for body in (b"", b"{", b"\xff", b"\xef\xbb\xbf{}", b"1" * 60_000, *SURROGATES)),
    *(('{"code": "print(1)"}'.encode(encoding), 400) for encoding in ("utf-16", "utf-16-le", "utf-32")),
    # Bytes: at most 4 MiB.
    (b'"' + b"x" * ((4 << 20) - 2) + b'"', 200),
    (b'"' + b"x" * ((4 << 20) - 1) + b'"', 413),
]


@pytest.mark.parametrize(("body", "expected"), BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("pieces", [1, 100])
def test_a_body_is_strict_json_of_bounded_size_values_and_depth_and_long_strings_are_not_refused(
    body, expected, pieces
):
    assert status(guard(4 << 20, max_values=1000), request(body, pieces=pieces)) == expected


def test_a_declared_length_is_no_reason_to_read_and_a_body_that_trickles_is_answered_in_time():
    assert status(OPEN, request(b"{}", headers=[("Content-Length", "9" * 30)])) == 413
    assert status(guard(max_body_seconds=0.1), request(b"{", ends=False)) == 408


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[]{},:"\\\\ \nx', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('",[\\', max_size=4), inner, max_size=4),
    max_leaves=20,
)


def size(value: object) -> tuple[int, int]:
    """The number of values of a JSON value, itself and those in it, and its depth."""
    if not isinstance(value, list | dict):
        return 1, 0
    inner = [size(one) for one in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(values for values, _ in inner), 1 + max((depth for _, depth in inner), default=0)


def measured(text: bytes, most: int, levels: int, step: int) -> None:
    measure = JsonMeasure(most, levels)
    for start in range(0, len(text), step):
        measure.add(text[start : start + step])


@given(JSON, st.integers(1, 9))
def test_values_and_levels_are_counted_whatever_the_pieces_and_the_strings(value, step):
    text = json.dumps(value, ensure_ascii=False).encode()
    empty = text.count(b"[]") + text.count(b"{}")  # counted with one value more than they have
    values, depth = size(value)
    measured(text, values + empty, depth, step)
    if depth > 0:
        with pytest.raises(UserError):
            measured(text, values + empty, depth - 1, step)
    if not empty and values > 1:
        with pytest.raises(TooManyValues):
            measured(text, values - 1, 100, step)


LARGE = json.dumps("x" * 90_000).encode()
HELD = 8


async def test_a_replica_holds_a_bounded_number_of_bytes_until_it_has_answered():
    replica, answer, arrived = guard(100_000, max_body_seconds=1.0), asyncio.Event(), []

    async def hold(body=LARGE, declared=True):
        try:
            async with replica.body(request(body, [("Content-Length", str(len(body)))] if declared else [])):
                arrived.append(body)
                await answer.wait()
        except Refused as refused:
            return refused.status_code
        return 200

    held = [asyncio.create_task(hold()) for _ in range(HELD)]
    await until(lambda: len(arrived) >= HELD)
    assert [await hold(), await hold(declared=False)] == [503, 503]
    small = asyncio.create_task(hold(b"1"))
    await until(lambda: len(arrived) >= HELD + 1)
    waiting = asyncio.create_task(hold())
    await asyncio.sleep(0.05)
    held.pop().cancel()  # as where its client has gone
    await until(lambda: len(arrived) >= HELD + 2)
    answer.set()
    assert set(await asyncio.gather(small, waiting, *held)) == {200}
    assert {await hold(body) for body in [LARGE, b"{", b"[" * 99_000] * 2 * HELD} == {200, 400}


async def judged_tests(body: bytes) -> tuple[int, float]:
    """The tests in a judge's request, and the longest time for which the event loop did nothing else, in seconds."""
    judge, longest = guard(64 << 20, max_values=values_of(10_000)), 0.0

    async def tick():
        nonlocal longest
        while True:
            began = time.process_time()  # not the wall clock, so that other programs do not count
            await asyncio.sleep(0.01)
            longest = max(longest, time.process_time() - began)

    ticking = asyncio.create_task(tick())
    try:
        async with judge.body(request(body, pieces=1000)) as payload:
            return len(JudgeRequest.parse(payload, max_tests=10_000).suite), longest
    except (Refused, UserError):
        return 0, longest
    finally:
        ticking.cancel()


@pytest.mark.parametrize("unit", ["[],", "{},", '{"a":0},', "0,", '"",', "["])
@pytest.mark.parametrize("quoted", [False, True])
async def test_a_body_of_values_takes_neither_memory_nor_time(unit, quoted):
    mebibytes = 12 if quoted else 48
    body = ("[" + unit * ((mebibytes << 20) // len(unit)) + "0]").encode()
    if quoted:
        body = b'{"code": "", "test_cases": "' + body.replace(b'"', b'\\"') + b'"}'
    tracemalloc.start()
    count, longest = await judged_tests(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 0 and peak < 300 << 20 and longest < 1.5


async def test_a_large_suite_of_few_tests_is_read():
    suite = {"inputs": ["1, 2, [3], {4}\n" * 200_000] * 10, "outputs": [""] * 10}
    assert (await judged_tests(json.dumps({"code": "", "test_cases": suite}).encode()))[0] == 10


def test_every_error_of_an_app_is_a_status_and_a_reason():
    api = service_api(None)

    @api.post("/")
    async def fail(request: Request):
        kind = await _read(LOCKED, request)
        raise {"user": UserError("u"), "infrastructure": InfrastructureError("i")}[kind]

    headers = {"Authorization": f"Bearer {TOKEN}"}
    client = TestClient(api, root_path="/app")
    assert client.post("/app", content=b'"user"', headers=headers).status_code == 422
    kinds = (b'"user"', b'"infrastructure"', b"{")
    answers = [client.post("/app/", content=kind, headers=headers) for kind in kinds]
    answers += [
        client.post("/app/", content=b"{}"),
        client.get("/app/", headers=headers),
        client.post("/app/nothing", headers=headers),
        client.get("/app/openapi.json", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [422, 503, 400, 401, 405, 404, 404]
    assert all(answer.json().keys() == {"error"} and answer.json()["error"] for answer in answers)


def test_a_suite_in_a_string_has_the_same_limits():
    for suite in ("[" + "{}," * 50_000 + "0]", "[" * 50_000, '{"inputs": [' + '"",' * 50_000 + '""], "outputs": []}'):
        with pytest.raises(UserError, match="test_cases"):
            JudgeRequest.parse({"code": "", "test_cases": suite}, max_tests=50)
    full = json.dumps({"inputs": ["1,2,[3]" * 10_000] * 50, "outputs": [""] * 50})
    assert len(JudgeRequest.parse({"code": "", "test_cases": full}, max_tests=50).suite) == 50


def test_a_token_fits_a_header_and_is_shown_nowhere(monkeypatch):
    for token in ("short", "has a blank in its middle", "ümlaut-in-the-token", "line\nfeed-in-the-token"):
        with pytest.raises(UserError) as caught:
            ServiceSettings.read({"token": token})
        assert token not in str(caught.value)
    monkeypatch.setenv("COBALT_JUDGE_TOKEN", TOKEN)
    settings = ServiceSettings.read()
    assert settings.token.get_secret_value() == TOKEN
    assert TOKEN not in repr(settings) + str(settings) + json.dumps(settings.of_the_judge().decisive())
