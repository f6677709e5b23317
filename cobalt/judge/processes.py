"""A judge of many sandboxes: several processes with some of the sandboxes each, so that none is held up by one loop.

Each process hosts the judge's app (`cobalt.serving.host`) on a Unix socket in a folder of mode 0700, with a token of
this run, and is asked by `UrlJudge`. It ends with this process, however that ends.
"""

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from cobalt.judge.settings import ENVIRONMENT_PREFIX, JudgeSettings
from cobalt.judge.url_judge import UrlJudge
from cobalt.stage.app_process import AppProcess

SANDBOXES_OF_A_PROCESS = 8

_SECONDS_TO_END = 5.0  # then it is killed; its sandboxes end by themselves, unless bubblewrap still starts them
_LONGEST_FOLDER = 80  # a socket's path has at most 107 bytes
_NO_LIMITS = {
    "max_tests": 10**9,
    "max_request_bytes": 1 << 40,
    "max_body_seconds": 1e9,
    "max_request_seconds": 1e9,
}
"""A judge in the process has none of the limits of requests."""


def shares(sandboxes: int) -> list[int]:
    """The numbers of sandboxes of each process, at most `SANDBOXES_OF_A_PROCESS`, and as equal as can be."""
    processes = -(-sandboxes // SANDBOXES_OF_A_PROCESS)
    return [sandboxes // processes + (index < sandboxes % processes) for index in range(processes)]


@asynccontextmanager
async def judging_processes(settings: JudgeSettings) -> AsyncIterator[UrlJudge]:
    """A judge whose sandboxes are in child processes, for as long as the block runs.

    Raises:
        UserError: programs cannot be isolated on this machine.
        InfrastructureError: a process did not start.
    """
    token = secrets.token_urlsafe(32)
    own = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    environment = own | {f"{ENVIRONMENT_PREFIX}TOKEN": token}
    children: list[AppProcess] = []
    short = None if len(tempfile.gettempdir()) < _LONGEST_FOLDER else "/tmp"
    with (
        tempfile.TemporaryDirectory("", "cobalt-judge-", short, ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        for index, share in enumerate(shares(settings.sandboxes)):
            of_child = settings.model_copy(update={"concurrency": share}).model_dump(mode="json") | _NO_LIMITS
            errors = stack.enter_context(tempfile.TemporaryFile())
            asked = {"settings": of_child, "socket": f"{folder}/{index}"}
            children.append(AppProcess("judge", asked, errors, environment))
            stack.callback(children[-1].end, _SECONDS_TO_END)
        for child in children:  # all at the same time, before the first is waited for
            stack.callback(child.ask_to_end)
        urls = await asyncio.gather(*(asyncio.to_thread(child.url) for child in children))
        async with UrlJudge(urls, token) as judge:
            yield judge
