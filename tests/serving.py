"""Apps in the event loop of a test, a stand-in app, and commands that are ended; no tests."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from support import ROOT, descendants


async def until(condition):
    """Wait for something of which nobody tells."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def served(api, port=0):
    """The URL of an app for as long as the block runs; then its connections are cut."""
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(api, log_level="critical", access_log=False, timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [item.getsockname()[1] for item in sockets]


class Scripted:
    """An app that answers `/describe`, and other requests as scripted: statuses in order, then 200.

    Attributes:
        requests: Headers and body of every other request.
        gate: While it is not set, requests are held.
    """

    def __init__(self, *statuses, description=None, error="as the server says", describing=200):
        self.statuses, self.error, self.describing = list(statuses), error, describing
        self.description = {"model": "m"} if description is None else description
        self.requests = []
        self.probes = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if scope["path"] == "/describe":
            self.probes += 1
            await JSONResponse(self.description, self.describing)(scope, receive, send)
            return
        self.requests.append((dict(request.headers), await request.body()))
        await self.gate.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        body = {"ok": True} if status == 200 else {"error": self.error}
        await JSONResponse(body, status)(scope, receive, send)


LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def listening(pids):
    """The local addresses that processes listen at."""
    addresses = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile, or is a sandbox
            sockets = psutil.Process(pid).net_connections("tcp")
            addresses |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    return addresses


COBALT = (sys.executable, "-m", "cobalt.commands")
SIGNALS = ["SIGINT to the group", "SIGTERM to the process", "SIGKILL to the process"]


class Command:
    """A program in a session of its own.

    Its processes have `mark` in their environment or are of its session; but sandboxes, which were below it once.
    """

    def __init__(self, folder, *words, program=COBALT, **environment):
        self.mark = str(folder)
        self.messages = folder / "messages"
        self._below = set()
        outside = os.environ | {"XDG_RUNTIME_DIR": str(folder / "run"), "COBALT_TEST_MARK": self.mark} | environment
        with self.messages.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*program, *map(str, words)],
                cwd=ROOT, env=outside, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
            )  # fmt: skip

    def processes(self):
        """The processes that belong to the command, by id, with their command lines."""
        for pid in descendants(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._below.add(psutil.Process(pid))
        matches = {}
        for process in {*psutil.process_iter(), *self._below}:
            with contextlib.suppress(psutil.Error, OSError):
                belongs = process in self._below and process.is_running()
                belongs |= os.getsid(process.pid) == self.process.pid
                if process.status() != psutil.STATUS_ZOMBIE and (
                    belongs or process.environ().get("COBALT_TEST_MARK") == self.mark
                ):
                    matches[process.pid] = " ".join(process.cmdline())
        return matches

    def wait_for(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.messages.read_text()[-3000:]
            assert time.monotonic() < deadline, self.messages.read_text()[-3000:]
            time.sleep(0.05)  # polling other processes: there is nothing to wait on

    def end(self, how):
        """Send a signal; returns the exit code and the lines that the command wrote from then on."""
        before = self.messages.stat().st_size
        self.processes()  # which then are known, whatever becomes of the command
        if how == SIGNALS[0]:
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGTERM if how == SIGNALS[1] else signal.SIGKILL)
        self.process.communicate(timeout=60)
        return self.process.returncode, self.messages.read_bytes()[before:].decode().splitlines()

    def assert_nothing_is_left(self, seconds=90):  # vLLM watches its parent once it is imported
        deadline = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


@contextlib.contextmanager
def running(folder, *words, **options):
    """A `Command` of which nothing is left when the block ends."""
    command = Command(folder, *words, **options)
    try:
        yield command
    finally:
        for pid in command.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.process.communicate()
