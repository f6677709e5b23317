"""Judges programs for another process: a JSON object a line on standard input, one for each on standard output.

The attack tests start one for each user they attack the judge as; that is all that runs as this user.

    request   {"settings": {...}, "programs": [{"code", "inputs", "outputs"}, ...], "seconds": n}: judge these programs
              at the same time; or {}: end the judges. A program may also have "fn_name" and "asserts", as a suite has
    answer    {"results": [{"kinds", "wall", "feedback", "error"}, ...], "restarts": how many sandboxes this cost}, or
              {"unsupported": why} where this machine has not what the settings ask for
"""

import asyncio
import contextlib
import json
import sys

from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError


async def judged(judge, program, seconds):
    suite = TestSuite.parse(program)
    try:
        async with asyncio.timeout(seconds):
            result = await judge.judge(program["code"], suite)
    except Exception as error:  # noqa: BLE001 - the test that asked says what should not have been
        return {"kinds": [], "wall": [], "feedback": [], "error": f"{type(error).__name__}: {error}"}
    return {
        "kinds": [verdict.kind for verdict in result.verdicts],
        "wall": [verdict.wall_seconds for verdict in result.verdicts],
        "feedback": result.feedback,
        "error": None,
    }


async def answer(judges, opened, request):
    try:
        settings = JudgeSettings(**request["settings"])
        if settings not in judges:
            judges[settings] = await opened.enter_async_context(LocalJudge(settings))
    except UserError as error:
        return {"unsupported": str(error)}
    judge = judges[settings]
    before = judge.restarts
    results = await asyncio.gather(*(judged(judge, program, request["seconds"]) for program in request["programs"]))
    return {"results": results, "restarts": judge.restarts - before}


async def main():
    judges, opened = {}, contextlib.AsyncExitStack()
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        reply = {"results": [], "restarts": 0}
        if "programs" in request:
            reply = await answer(judges, opened, request)
        else:
            judges.clear()
            await opened.aclose()
        print(json.dumps(reply), flush=True)  # noqa: T201
    await opened.aclose()


if __name__ == "__main__":
    asyncio.run(main())
