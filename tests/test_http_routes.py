"""HTTP routes of the apps, without Ray: who is admitted, how much may be sent, and what takes no sandbox."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys

import httpx
import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.judge.wire import JudgeRequest
from cobalt.serving.http_guard import Guard, Refused, guarded_api
from cobalt.serving.settings import ServiceSettings
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.json_measure import JsonMeasure, TooManyValues

TOKEN = "a-token-of-decent-length"
OPEN = Guard(None, 1000, "X_TOKEN")
LOCKED = Guard(TOKEN, 1000, "X_TOKEN")


def request(body: bytes = b"{}", headers=(), client="127.0.0.1", pieces: int = 1) -> Request:
    """A request as Serve hands it to an app."""
    step = max(1, -(-len(body) // pieces))
    parts = [body[start : start + step] for start in range(0, len(body), step)] or [b""]

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": (client, 4711) if client else None,
    }
    return Request(scope, receive)


async def _read(guard: Guard, asked: Request) -> object:
    async with guard.body(asked) as value:
        return value


def status(guard: Guard, asked: Request) -> int:
    try:
        asyncio.run(_read(guard, asked))
    except Refused as refused:
        return refused.status_code
    return 200


def each(name: str, *values: str) -> list[list[tuple[str, str]]]:
    return [[(name, value)] for value in values]


PROXY = [
    "X-Forwarded-For",
    "Forwarded",
    "X-Real-IP",
    "Via",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "CF-Connecting-IP",
]
OF_THIS_MACHINE = ["localhost", "LocalHost.:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "[::ffff:127.0.0.1]"]
OF_OTHERS = ["evil.example", "evil.example:8000", "localhost.evil.example", "", "127.0.0.1.evil.example"]
OF_OTHERS += ["evil.example@localhost", "192.0.2.1:8000", "[2001:db8::1]"]
PAGE = [*each("Origin", "http://example.org", "null"), *each("Sec-Fetch-Site", "cross-site", "same-origin")]
SENT = [
    *((200, 200, headers) for headers in each("Host", *OF_THIS_MACHINE)),
    *((403, 200, headers) for headers in each("Host", *OF_OTHERS)),
    *((403, 200, [("Host", "localhost"), *headers]) for headers in each("Host", *OF_OTHERS)),
    *((403, 200, [(name, "127.0.0.1")]) for name in (*PROXY, "CF-Connecting-IP")),
    *((403, 403, headers) for headers in PAGE),
]


@pytest.mark.parametrize(("without", "expected", "headers"), SENT)
def test_without_a_token_only_names_of_this_machine_are_answered_no_proxies_and_never_web_pages(
    without, expected, headers
):
    assert status(OPEN, request(headers=headers)) == without
    assert status(LOCKED, request(headers=[*headers, ("Authorization", f"Bearer {TOKEN}")])) == expected


CLIENTS = dict.fromkeys(("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"), 200)
CLIENTS |= dict.fromkeys(("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "testclient", ""), 403)


def test_without_a_token_only_requests_from_this_machine_are_answered():
    assert {client: status(OPEN, request(client=client)) for client in CLIENTS} == CLIENTS


def test_a_token_is_asked_for_where_one_is_set():
    wrong = ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer \xff")
    for client in ("127.0.0.1", "192.0.2.1"):
        for headers in ([], *each("Authorization", *wrong)):
            assert status(LOCKED, request(headers=headers, client=client)) == 401, headers
        for headers in each("Authorization", f"Bearer {TOKEN}", f"bearer {TOKEN}"):
            assert status(LOCKED, request(headers=headers, client=client)) == 200, headers


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_body_of_bounded_size_is_read_whatever_length_it_declares(pieces):
    fits, does_not = b'"' + b"x" * 998 + b'"', b'"' + b"x" * 999 + b'"'
    assert status(OPEN, request(fits, pieces=pieces)) == 200
    assert status(OPEN, request(does_not, pieces=pieces)) == 413
    assert status(OPEN, request(b"{}", headers=[("Content-Length", "9" * 30)])) == 413


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[]{},:"\\\\ \nx', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('",[\\\\', max_size=4), inner, max_size=4),
    max_leaves=20,
)


def values(value: object) -> int:
    """The number of values of a JSON value: itself and those in it."""
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return 1 + sum(map(values, inner))


def depth(value: object) -> int:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def measured(text: bytes, most: int, levels: int, step: int) -> None:
    measure = JsonMeasure(most, levels)
    for start in range(0, len(text), step):
        measure.add(text[start : start + step])


@given(JSON, st.integers(1, 9))
def test_values_and_levels_are_counted_whatever_the_pieces_and_the_strings(value, step):
    text = json.dumps(value, ensure_ascii=False).encode()
    empty = text.count(b"[]") + text.count(b"{}")  # counted with one value more than they have
    most = values(value) + empty
    measured(text, most, depth(value), step)
    if depth(value) > 0:
        with pytest.raises(UserError):
            measured(text, most, depth(value) - 1, step)
    if not empty and values(value) > 1:
        with pytest.raises(TooManyValues):
            measured(text, values(value) - 1, 100, step)


BOUNDED = Guard(None, 4 << 20, "X", max_values=1000)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[" + b"0," * 998 + b"0]", 200),
        (b"[" + b"0," * 999 + b"0]", 422),
        (b"[" + b"[]," * 1000 + b"0]", 422),
        (b"[" + b"{}," * 1000 + b"0]", 422),
        (b"[" + b'"",' * 1000 + b'""]', 422),
        (b'"' * 10_000, 422),
        (json.dumps('[{,"\\' * 500_000).encode(), 200),
        (json.dumps(["1, 2, [3]" * 400_000]).encode(), 200),
        (b"[" * 100 + b"]" * 100, 200),
        (b"[" * 101 + b"]" * 101, 400),
        (b'{"a":' * 101 + b"0" + b"}" * 101, 400),
        (b"]" * (4 << 20), 400),
        (b"[" * (4 << 20), 400),
        (b"\\" * (4 << 20), 400),
        (b"1." + b"0" * (3 << 20), 200),
    ],
    ids=range(15),
)
@pytest.mark.parametrize("pieces", [1, 100])
def test_a_body_of_too_many_values_or_levels_is_refused_and_long_strings_are_not(body, expected, pieces):
    assert status(BOUNDED, request(body, pieces=pieces)) == expected


def test_a_suite_in_a_string_has_the_same_limits():
    for suite in ("[" + "{}," * 50_000 + "0]", "[" * 50_000, '{"inputs": [' + '"",' * 50_000 + '""], "outputs": []}'):
        with pytest.raises(UserError, match="test_cases"):
            JudgeRequest.parse({"code": "", "test_cases": suite}, max_tests=50)
    full = json.dumps({"inputs": ["1,2,[3]" * 10_000] * 50, "outputs": [""] * 50})
    assert len(JudgeRequest.parse({"code": "", "test_cases": full}, max_tests=50).suite) == 50


LARGE = json.dumps("x" * 90_000).encode()
HELD = 8


async def test_a_replica_holds_a_bounded_number_of_bytes_until_it_has_answered():
    guard = Guard(None, 100_000, "X", max_seconds=0.3)
    api, answer, arrived = guarded_api(), asyncio.Event(), 0

    @api.post("/")
    async def hold(request: Request):
        nonlocal arrived
        async with guard.body(request):
            arrived += 1
            await answer.wait()

    @api.post("/small")
    async def small(request: Request):
        await _read(guard, request)

    async def chunked():
        yield LARGE

    transport = httpx.ASGITransport(app=api)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        held = [asyncio.create_task(client.post("/", content=LARGE)) for _ in range(HELD)]
        while arrived < HELD:  # noqa: ASYNC110 - the route tells nobody
            await asyncio.sleep(0.01)
        for body in (LARGE, chunked()):
            refused = await client.post("/", content=body)
            assert (refused.status_code, refused.json().keys()) == (503, {"error"})
        assert (await client.post("/small", content=b"1")).status_code == 200
        waiting = asyncio.create_task(client.post("/", content=LARGE))
        await asyncio.sleep(0.05)
        given_up = held.pop()
        given_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await given_up
        while arrived < HELD + 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        answer.set()
        assert {one.status_code for one in await asyncio.gather(waiting, *held)} == {200}
        answers = [await client.post("/", content=body) for body in [LARGE, b"{", b"[" * 99_000] * 2 * HELD]
        assert {one.status_code for one in answers} == {200, 400}


SERVER = """
import asyncio, resource, socket, sys, time
import uvicorn
from fastapi import Request
from cobalt.serving.http_guard import Guard, guarded_api
from cobalt.judge.wire import JudgeRequest, values_of
guard = Guard(None, 64 << 20, "X", max_values=values_of(10_000), max_seconds=5)
api = guarded_api()
longest = 0.0

@api.post("/")
async def judge(request: Request):
    async with guard.body(request) as payload:
        return len(JudgeRequest.parse(payload, max_tests=10_000).suite)

@api.post("/soon")
async def soon(request: Request):
    async with Guard(None, 1000, "X", max_seconds=0.5).body(request):
        pass

@api.get("/state")
async def state():
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "longest": longest}

async def tick():
    global longest
    while True:
        began = time.process_time()  # not the wall clock, so that other programs do not count
        await asyncio.sleep(0.01)
        longest = max(longest, time.process_time() - began)

async def main():
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    ticking = asyncio.create_task(tick())
    await uvicorn.Server(uvicorn.Config(api, log_level="error")).serve(sockets=[listening])

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server():
    """The address of a real server with the judge's checks, where a body may have 64 MiB, without a judge."""
    with subprocess.Popen([sys.executable, "-c", SERVER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@pytest.mark.parametrize("unit", ["[],", "{},", '{"a":0},', "0,", '"",', "["])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_body_of_values_takes_neither_memory_nor_time(server, unit, quoted):
    mebibytes = 12 if quoted else 48
    body = ("[" + unit * ((mebibytes << 20) // len(unit)) + "0]").encode()
    if quoted:
        body = b'{"code": "", "test_cases": "' + body.replace(b'"', b'\\"') + b'"}'
    before = httpx.get(f"{server}/state", timeout=60).json()
    answer = httpx.post(server, content=body, timeout=60)
    assert answer.status_code in (400, 422)
    after = httpx.get(f"{server}/state", timeout=60).json()
    assert after["peak"] - before["peak"] < 300, "MiB"
    assert after["longest"] < 1.5, "seconds of the event loop"


def test_a_large_suite_of_few_tests_is_read(server):
    inputs = ["1, 2, [3], {4}\n" * 200_000] * 10
    payload = {"code": "", "test_cases": {"inputs": inputs, "outputs": [""] * 10}}
    assert httpx.post(server, json=payload, timeout=60).json() == 10


def test_a_body_that_trickles_is_answered_in_time(server):
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"POST /soon HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_every_error_of_an_app_is_a_status_and_a_reason():
    api = guarded_api()

    @api.post("/")
    async def fail(request: Request):
        kind = await _read(LOCKED, request)
        raise {"user": UserError("u"), "infrastructure": InfrastructureError("i")}[kind]

    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(api, root_path="/app") as client:
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


BROKEN = [
    *(b"", b"{", b"\xff", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 60_000),
    b'{"code": "\xed\xa0\x80"}',  # a lone surrogate in bytes
    *(b'{"code": "\\ud800"}', b'{"code": "", "files": {"\\udfff": ""}}', b'{"\\ud800": 1}'),
    *('{"code": "print(1)"}'.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-32")),
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_a_body_that_is_not_strict_utf8_json_is_refused(body):
    assert status(Guard(None, 1 << 20, "X"), request(body)) == 400


@pytest.mark.parametrize(
    "token", ["short", "has a blank in its middle", "ümlaut-in-the-token", "line\nfeed-in-the-token"]
)
def test_a_token_that_cannot_be_a_header_is_refused_and_not_shown(token):
    with pytest.raises(UserError) as caught:
        ServiceSettings.from_mapping({"token": token})
    assert token not in str(caught.value)


def test_a_token_appears_in_no_description_and_no_representation():
    settings = ServiceSettings.from_mapping({}, {"COBALT_JUDGE_TOKEN": TOKEN})
    assert settings.token.get_secret_value() == TOKEN
    assert TOKEN not in repr(settings) + str(settings) + json.dumps(settings.of_the_judge().decisive())


def test_a_result_says_that_its_cluster_was_open_and_older_records_are_of_private_ones():
    result = ExecResult([True], [""], [Verdict(VerdictKind.PASSED)], private=False)
    assert result.to_record()["private"] is False
    assert ExecResult.from_record(result.to_record()) == result
    assert ExecResult.from_record({"passing": [True], "feedback": [""]}).private
