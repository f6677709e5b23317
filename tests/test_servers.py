"""`Servers`, the pool of URLs: who gets a request, what is retried, what ends a run, and who is left out."""

import asyncio
import contextlib
import socket
import time

import pytest
from serving import Scripted, served

from cobalt.stage import servers as stage_servers
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError
from cobalt.stage.servers import Servers, encode

ADVICE = "start it with `cobalt serve`"


@contextlib.asynccontextmanager
async def pool(*urls, token=None, **options):
    options = {"attempts": 4, "longest_wait": 0.2} | options
    servers = Servers(urls, token, name="the judge", start_advice=ADVICE, **options)
    try:
        yield servers
    finally:
        await servers.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_refusal_is_the_users_error_in_the_servers_words_and_is_not_retried(status):
    app = Scripted(status)
    async with served(app) as url, pool(url) as servers:
        with pytest.raises(UserError) as caught:
            await servers.post("/", b"{}")
        assert app.error in str(caught.value)
        assert url in str(caught.value)
        assert len(app.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 504])
async def test_what_another_attempt_can_mend_is_retried_and_never_an_answer(status):
    app = Scripted(status, status)
    async with served(app) as url, pool(url) as servers:
        assert (await servers.post("/", b"{}")).json() == {"ok": True}
        assert len(app.requests) == 3
        app.statuses = [status] * 99
        with pytest.raises(InfrastructureError) as caught:
            await servers.post("/", b"{}")
        assert not isinstance(caught.value, UserError)


async def test_a_status_that_the_caller_accepts_is_an_answer():
    app = Scripted(409)
    async with served(app) as url, pool(url) as servers:
        assert (await servers.post("/", b"{}", accept=(409,))).status_code == 409


async def test_a_request_goes_to_the_server_with_the_fewest_open_requests():
    slow, fast = Scripted(), Scripted()
    slow.gate.clear()
    async with served(slow) as one, served(fast) as two, pool(one, two) as servers:
        held = asyncio.create_task(servers.post("/", b"{}"))
        while not slow.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(5):
            await servers.post("/", b"{}")
        assert (len(slow.requests), len(fast.requests)) == (1, 5)
        slow.gate.set()
        await held


async def test_a_dead_server_is_left_out_until_it_answers(monkeypatch):
    monkeypatch.setattr(stage_servers, "ASKED_AGAIN", 0.3)
    port, living, back = free_port(), Scripted(), Scripted()
    async with served(living) as url, pool(f"http://127.0.0.1:{port}", url) as servers:
        for _ in range(20):
            await servers.post("/", b"{}")
        assert len(living.requests) == 20
        async with served(back, port):
            deadline = time.monotonic() + 20
            while not back.requests:
                assert time.monotonic() < deadline
                await servers.post("/", b"{}")
        assert back.probes == 1


async def test_a_server_that_hangs_holds_up_no_request_and_is_asked_once_at_a_time(monkeypatch):
    monkeypatch.setattr(stage_servers, "ASKED_AGAIN", 0.0)
    silent, asked = [], Scripted()

    async def keep_silent(reader, writer):
        silent.append(writer)
        if len(silent) == 1:
            writer.close()

    hanging = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    port = hanging.sockets[0].getsockname()[1]
    async with hanging, served(asked) as url, pool(f"http://127.0.0.1:{port}", url) as servers:
        began = time.monotonic()
        for count in (1, 9, 9):
            await asyncio.gather(*(servers.post("/", b"{}") for _ in range(count)))
        assert time.monotonic() - began < 5
        assert len(silent) == 2  # the first request, and one probe
        for writer in silent:
            writer.close()


async def test_a_server_that_is_busy_three_times_in_a_row_is_left_out():
    busy, idle = Scripted(*[503] * 50), Scripted()
    async with served(busy) as one, served(idle) as two, pool(one, two) as servers:
        for _ in range(20):
            await servers.post("/", b"{}")
        assert len(busy.requests) == 3
        assert len(idle.requests) == 20


async def test_a_service_that_was_never_there_is_down_at_once_and_the_message_says_how_to_start_it():
    urls = [f"http://127.0.0.1:{free_port()}/evaluator" for _ in range(2)]
    async with pool(*urls, attempts=50, longest_wait=20.0) as servers:
        began = time.monotonic()
        for ask in (servers.post("/", b"{}"), servers.describe()):
            with pytest.raises(ServiceDown) as caught:
                await ask
            assert ADVICE in str(caught.value)
            assert urls[1] in str(caught.value)
        assert time.monotonic() - began < 10


async def test_a_server_that_restarts_is_waited_for_and_one_that_does_not_is_down():
    port = free_port()
    async with pool(f"http://127.0.0.1:{port}", attempts=30) as servers:
        async with served(Scripted(), port):
            await servers.post("/", b"{}")
        waiting = asyncio.create_task(servers.post("/", b"{}"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        async with served(Scripted(), port):
            assert (await waiting).json() == {"ok": True}
    async with pool(f"http://127.0.0.1:{port}", attempts=3) as servers:
        async with served(Scripted(), port):
            await servers.post("/", b"{}")
        with pytest.raises(ServiceDown, match="cobalt serve"):
            await servers.post("/", b"{}")


async def test_a_connection_that_is_lost_in_a_request_is_retried_elsewhere():
    async def cut(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    cutting = await asyncio.start_server(cut, "127.0.0.1", 0)
    port = cutting.sockets[0].getsockname()[1]
    async with cutting, served(Scripted()) as url, pool(f"http://127.0.0.1:{port}", url) as servers:
        assert (await servers.post("/", b"{}")).json() == {"ok": True}


async def test_servers_must_describe_themselves_alike():
    one, two = Scripted(description={"cpu_seconds": 4}), Scripted(description={"cpu_seconds": 5})
    async with served(one) as first, served(two) as second:
        async with pool(first, second) as servers:
            with pytest.raises(UserError, match="cpu_seconds"):
                await servers.describe()
        two.description = dict(one.description)
        async with pool(first, second) as servers:
            assert await servers.describe() == {"cpu_seconds": 4}


async def test_a_server_that_is_busy_keeps_no_other_from_describing_itself():
    busy, idle = Scripted(describing=503), Scripted()
    async with served(busy) as one, served(idle) as two:
        async with pool(one, two) as servers:
            assert await servers.describe() == idle.description
        async with pool(one) as servers:
            with pytest.raises(InfrastructureError) as caught:
                await servers.describe()
            assert not isinstance(caught.value, ServiceDown)


async def test_a_server_that_comes_back_with_other_settings_is_refused():
    port = free_port()
    async with pool(f"http://127.0.0.1:{port}", attempts=3) as servers:
        async with served(Scripted(description={"cpu_seconds": 4}), port):
            await servers.describe()
        with pytest.raises(ServiceDown):
            await servers.post("/", b"{}")
        async with served(Scripted(description={"cpu_seconds": 5}), port):
            with pytest.raises(UserError, match="cpu_seconds"):
                await servers.post("/", b"{}")


async def test_the_token_is_sent_and_loopback_needs_no_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_port()}")
    app = Scripted()
    async with served(app) as url, pool(url, token="a-token-of-decent-length") as servers:
        await servers.post("/", b"{}")
    assert app.requests[0][0]["authorization"] == "Bearer a-token-of-decent-length"


async def test_a_server_on_a_unix_socket_is_asked(tmp_path):
    app = Scripted()
    async with served(app, path=tmp_path / "s") as url, pool(url) as servers:
        assert (await servers.post("/", b"{}")).json() == {"ok": True}


async def test_the_body_may_depend_on_the_server():
    app = Scripted()
    async with served(app) as url, pool(url) as servers:
        await servers.post("/", lambda used: encode({"at": used}))
        assert app.requests[0][1] == encode({"at": url})


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://h", "http://", "http://h:port", "judge"])
def test_what_is_not_the_url_of_a_server_is_named(url):
    with pytest.raises(UserError) as caught:
        Servers([url], name="the judge", start_advice=ADVICE)
    assert repr(url) in str(caught.value)


def test_no_url_is_the_users_error():
    with pytest.raises(UserError):
        Servers([], name="the judge", start_advice=ADVICE)


def test_half_surrogates_are_replaced():
    assert encode({"code": "\ud800é"}) == '{"code":"?é"}'.encode()
