"""Judge the responses of one problem, each distinct program once."""

from cobalt.conversation import program_of
from cobalt.judge import ExecResult, Judge, RememberingJudge
from cobalt.problem import TestSuite


class ProblemJudge:
    """Judges responses on one suite.

    The samples of a problem repeat programs often, and so do the turns of a conversation: every response with the same
    program has the same result.
    """

    def __init__(self, judge: Judge, suite: TestSuite) -> None:
        self._judge = RememberingJudge(judge)
        self._suite = suite

    async def __call__(self, response: str) -> ExecResult:
        """The result of the program in `response`; without a program every test fails.

        Raises:
            InfrastructureError: the judge failed.
        """
        program = program_of(response)
        if program is None:
            return ExecResult.no_code(len(self._suite))
        return await self._judge.judge(program, self._suite)
