"""A judge of many sandboxes: several processes with some of the sandboxes each, so that none is held up by one loop.

Each process hosts the judge's app (`cobalt.serving.host`) on a Unix socket in a folder of mode 0700, with a token of
this run, and is asked by `UrlJudge`. It ends with this process, however that ends.
"""

import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from cobalt.judge.settings import ENVIRONMENT_PREFIX, JudgeSettings
from cobalt.judge.url_judge import UrlJudge
from cobalt.stage.errors import InfrastructureError, UserError, last_line

SANDBOXES_OF_A_PROCESS = 8

_SECONDS_TO_END = 2.0  # then it is killed; its sandboxes end by themselves
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
    async with AsyncExitStack() as stack:
        short = None if len(tempfile.gettempdir()) < _LONGEST_FOLDER else "/tmp"
        folder = stack.enter_context(
            tempfile.TemporaryDirectory("", "cobalt-judge-", short, ignore_cleanup_errors=True)
        )
        token = secrets.token_urlsafe(32)
        sockets = [Path(folder) / str(index) for index, _ in enumerate(shares(settings.sandboxes))]
        children = [
            await stack.enter_async_context(_child(path, settings.model_copy(update={"concurrency": share}), token))
            for path, share in zip(sockets, shares(settings.sandboxes), strict=True)
        ]
        stack.push_async_callback(_end, [process for process, _ in children])
        await asyncio.gather(*(_answer(*child) for child in children))
        yield await stack.enter_async_context(UrlJudge([f"unix:{path}" for path in sockets], token))


@asynccontextmanager
async def _child(
    path: Path, settings: JudgeSettings, token: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, IO[bytes]]]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cobalt.serving.host", "judge", "--uds", str(path)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=own | {f"{ENVIRONMENT_PREFIX}TOKEN": token},
            start_new_session=True,  # Ctrl-C in a terminal reaches this process, which ends the other
        )
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(settings.model_dump(mode="json") | _NO_LIMITS).encode() + b"\n")
            yield process, errors
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _end(processes: list[asyncio.subprocess.Process]) -> None:
    """Have all processes end at the same time, and wait for a while until they have."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    await asyncio.wait([asyncio.create_task(process.wait()) for process in processes], timeout=_SECONDS_TO_END)


async def _answer(process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
    """Wait until a process answers requests."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    answer = json.loads(line or b"{}")
    if "port" in answer:
        return
    errors.seek(0)
    cause = answer.get("error") or last_line(errors.read().decode(errors="replace")) or "it ended"
    if answer.get("mistake"):
        raise UserError(cause)
    raise InfrastructureError(f"a process of the judge did not start: {cause}")
