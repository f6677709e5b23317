"""`Servers`, the pool of URLs: who gets a request, what is retried, what ends a run, and who is left out."""

import asyncio
import contextlib
import time

import pytest
from serving import Scripted, free_ports, served, until

from cobalt.stage import servers as stage_servers
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError
from cobalt.stage.servers import Servers

ADVICE = "start it with `cobalt serve`"


@contextlib.asynccontextmanager
async def pool(*urls, token=None, **options):
    options = {"attempts": 4, "longest_wait": 0.2} | options
    servers = Servers(urls, token, name="the judge", start_advice=ADVICE, **options)
    try:
        yield servers
    finally:
        await servers.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 408, 409, 429, 500, 503, 504])
async def test_a_refusal_is_the_users_error_in_the_servers_words_and_what_another_attempt_can_mend_is_retried(status):
    app, refused = Scripted(status, status), status < 500 and status not in (408, 409, 429)
    async with served(app) as url, pool(url) as servers:
        if not refused:
            assert (await servers.post("/", b"{}")).json() == {"ok": True}
            assert len(app.requests) == 3
        app.statuses, before = [status] * 99, len(app.requests)
        assert (await servers.post("/", b"{}", accept=(status,))).status_code == status
        with pytest.raises(UserError if refused else InfrastructureError) as caught:
            await servers.post("/", b"{}")
        assert len(app.requests) - before == (2 if refused else 5)
        assert isinstance(caught.value, UserError) is refused
        assert not refused or (app.error in str(caught.value) and url in str(caught.value))


async def test_a_request_goes_to_the_server_with_the_fewest_open_requests():
    slow, fast = Scripted(), Scripted()
    slow.gate.clear()
    async with served(slow) as one, served(fast) as two, pool(one, two) as servers:
        held = asyncio.create_task(servers.post("/", b"{}"))
        await until(lambda: slow.requests)
        for _ in range(5):
            await servers.post("/", b"{}")
        assert (len(slow.requests), len(fast.requests)) == (1, 5)
        slow.gate.set()
        await held


async def test_a_dead_server_is_left_out_until_it_answers(monkeypatch):
    monkeypatch.setattr(stage_servers, "ASKED_AGAIN", 0.3)
    port, living, back = free_ports(1)[0], Scripted(), Scripted()
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
    assert (len(busy.requests), len(idle.requests)) == (3, 20)


async def test_a_service_that_was_never_there_is_down_at_once_and_the_message_says_how_to_start_it():
    urls = [f"http://127.0.0.1:{free_ports(1)[0]}/evaluator" for _ in range(2)]
    async with pool(*urls, attempts=50, longest_wait=20.0) as servers:
        began = time.monotonic()
        for ask in (servers.post("/", b"{}"), servers.describe()):
            with pytest.raises(ServiceDown) as caught:
                await ask
            assert ADVICE in str(caught.value)
            assert urls[1] in str(caught.value)
        assert time.monotonic() - began < 10


async def test_a_server_that_restarts_is_waited_for():
    port = free_ports(1)[0]
    async with pool(f"http://127.0.0.1:{port}", attempts=30) as servers:
        async with served(Scripted(), port):
            await servers.post("/", b"{}")
        waiting = asyncio.create_task(servers.post("/", b"{}"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        async with served(Scripted(), port):
            assert (await waiting).json() == {"ok": True}


async def test_a_server_that_comes_back_with_other_settings_is_refused():
    port = free_ports(1)[0]
    async with pool(f"http://127.0.0.1:{port}", attempts=3) as servers:
        async with served(Scripted(description={"cpu_seconds": 4}), port):
            await servers.describe()
        with pytest.raises(ServiceDown, match="cobalt serve"):
            await servers.post("/", b"{}")
        async with served(Scripted(description={"cpu_seconds": 5}), port):
            with pytest.raises(UserError, match="cpu_seconds"):
                await servers.post("/", b"{}")


async def test_servers_describe_themselves_alike_and_one_that_is_busy_keeps_no_other_from_it():
    one, two = Scripted(description={"cpu_seconds": 4}), Scripted(description={"cpu_seconds": 5})
    async with served(one) as first, served(two) as second:
        async with pool(first, second) as servers:
            with pytest.raises(UserError, match="cpu_seconds"):
                await servers.describe()
        two.describing = 503
        async with pool(first, second) as servers:
            assert await servers.describe() == {"cpu_seconds": 4}
        async with pool(second) as servers:
            with pytest.raises(InfrastructureError) as caught:
                await servers.describe()
            assert not isinstance(caught.value, ServiceDown)
        async with served(Scripted(description={})) as other, pool(other) as servers:
            with pytest.raises(UserError, match=other):
                await servers.describe()


async def test_the_token_is_sent_and_loopback_needs_no_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_ports(1)[0]}")
    app = Scripted()
    async with served(app) as url, pool(url, token="a-token-of-decent-length") as servers:
        await servers.post("/", b"{}")
    assert app.requests[0][0]["authorization"] == "Bearer a-token-of-decent-length"


@pytest.mark.parametrize(
    "urls", [[], [""], ["localhost:8000"], ["ftp://h"], ["http://"], ["http://h:port"], ["http://h", "judge"]]
)
def test_what_is_not_the_url_of_a_server_is_named(urls):
    with pytest.raises(UserError) as caught:
        Servers(urls, name="the judge", start_advice=ADVICE)
    assert (repr(urls[-1]) if urls else ADVICE) in str(caught.value)
