"""A judge with a cache: each distinct program is judged once on a suite. Policies repeat programs, small ones most."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from cobalt.judge.local import Judge
from cobalt.judge.verdict import ExecResult
from cobalt.problems.problem import TestSuite


class RememberingJudge:
    """Keeps the results of the last programs, those still being judged included; for one event loop.

    A program that draws random numbers keeps its first result for as long as that is remembered. A failure of the
    judge is not remembered.

    Args:
        judge: The judge that runs programs.
        capacity: Number of results, with their programs and suites, to remember.
    """

    def __init__(self, judge: Judge, capacity: int = 4096) -> None:
        self._judge = judge
        self._capacity = capacity
        self._results: OrderedDict[tuple[str, TestSuite, bool], asyncio.Task[ExecResult]] = OrderedDict()

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """The program's result, remembered or new; see `Judge`."""
        key = (code, suite, stop_at_first_failure)
        task = self._results.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._judge.judge(code, suite, stop_at_first_failure=stop_at_first_failure))
            # An interrupted run waits for none of them, and asyncio would report each failure that nobody has seen.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._results[key] = task
            if len(self._results) > self._capacity:
                self._results.popitem(last=False)
        self._results.move_to_end(key)
        return await asyncio.shield(task)

    async def describe(self) -> Mapping[str, Any]:
        """The other judge's settings; see `Judge`."""
        return await self._judge.describe()
