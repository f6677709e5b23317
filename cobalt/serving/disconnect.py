"""Ends the work of a request whose client has gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from cobalt.serving.http_guard import Refused

Result = TypeVar("Result")


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client closes its connection.

    Call it when the request's body has been read: uvicorn itself goes on with a request whose client has gone.

    Raises:
        Refused: the client has gone, so that nobody reads the answer.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refused(400, "the client has closed the connection")
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait((task, gone))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
