"""Judge the responses of one problem, each distinct program once."""

import asyncio

from cobalt.conversation import program_of
from cobalt.judge import ExecResult, Judge
from cobalt.problem import TestSuite


class ProblemJudge:
    """Judges responses on one suite and remembers the result of each program.

    The samples of a problem repeat programs often, and so do the turns of a conversation. A program is judged once
    for the problem, and every response with the same program has the same result. (A program that draws random
    numbers would otherwise be judged anew each time.)
    """

    def __init__(self, judge: Judge, suite: TestSuite) -> None:
        self._judge = judge
        self._suite = suite
        self._results: dict[str, asyncio.Task[ExecResult]] = {}

    async def __call__(self, response: str) -> ExecResult:
        """The result of the program in `response`; without a program every test fails.

        Raises:
            InfrastructureError: the judge failed, also when asked again.
        """
        program = program_of(response)
        if program is None:
            return ExecResult.no_code(len(self._suite))
        task = self._results.get(program)
        if task is None:
            task = asyncio.create_task(self._judge.judge(program, self._suite))
            self._results[program] = task
        return await asyncio.shield(task)
