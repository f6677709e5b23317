"""Judges programs for another process: a JSON object a line on standard input, one for each on standard output.

The attack tests start one for each user they attack the judge as; that is all that runs as this user.

    request   {"settings": {...}, "programs": [a suite's fields and "code", ...], "seconds": n}: judge these programs
              at the same time; or {"settings": null}: end the judges
    answer    {"results": [...], "restarts": how many sandboxes this cost}, with an "error" if there was none for a
              program, or {"unsupported": why} where this machine has not what the settings ask for
"""

import asyncio
import contextlib
import json
import sys

from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError


async def main():
    judges, opened = {}, contextlib.AsyncExitStack()
    async with opened:
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            if request["settings"] is None:
                judges.clear()
                await opened.aclose()
                reply = {"results": [], "restarts": 0}
            else:
                reply = await answer(judges, opened, **request)
            print(json.dumps(reply), flush=True)  # noqa: T201


async def answer(judges, opened, settings, programs, seconds):
    wanted = JudgeSettings(**settings)
    try:
        if wanted not in judges:
            judges[wanted] = await opened.enter_async_context(LocalJudge(wanted))
    except UserError as error:
        return {"unsupported": str(error)}
    judge = judges[wanted]
    before = judge.restarts
    judging = [judge.judge(program["code"], TestSuite.parse(program)) for program in programs]
    results = await asyncio.gather(*(asyncio.wait_for(one, seconds) for one in judging), return_exceptions=True)
    reply = {"restarts": judge.restarts - before}
    # The test that asked says what should not have been.
    errors = [f"{type(error).__name__}: {error}" for error in results if isinstance(error, Exception)]
    return reply | ({"error": errors[0]} if errors else {"results": [result.to_record() for result in results]})


if __name__ == "__main__":
    asyncio.run(main())
