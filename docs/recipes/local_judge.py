"""Judge a program on two tests, in this process: no Ray, no service."""

import asyncio

from cobalt.judge import LocalJudge
from cobalt.problems.problem import TestSuite


async def main():
    async with LocalJudge() as judge:
        result = await judge.judge("print(int(input()) * 2)", TestSuite(("2\n", "3\n"), ("4\n", "9\n")))
    print(result.pass_rate, [verdict.kind.value for verdict in result.verdicts])
    print(result.feedback[1])


asyncio.run(main())
