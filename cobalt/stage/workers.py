"""Work on many items at a time, each of them once. What becomes of an item that fails, `work` decides."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from cobalt.stage.errors import CobaltError

Item = TypeVar("Item")


async def work_on_all(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], concurrency: int) -> None:
    """Call `work` with every item, `concurrency` at a time.

    Items are taken in order, each when a worker is free, and read in a thread. What `items` or `work` raises first is
    raised, bugs before the project's own errors; the other calls are cancelled and awaited.
    """
    source = iter(items)
    reading = asyncio.Lock()
    end = object()

    async def worker() -> None:
        while True:
            async with reading:
                item: Any = await asyncio.to_thread(next, source, end)
            if item is end:
                return
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        first: BaseException = (
            errors.subgroup(lambda one: not isinstance(one, CobaltError | BaseExceptionGroup)) or errors
        )
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
