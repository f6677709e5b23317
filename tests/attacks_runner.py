"""Judges programs for another process: a JSON object a line on standard input, one for each on standard output.

The attack tests start one for each user they attack the judge as; that is all that runs as this user.

    request   {"settings": {...}, "programs": [{"code", "inputs", "outputs"}, ...], "seconds": n}: judge these programs
              at the same time; or {}: end the judges. A program may also have "fn_name" and "asserts", as a suite has
    answer    {"results": [{"kinds", "wall", "feedback", "error"}, ...], "restarts": how many sandboxes this cost}
"""

import asyncio
import json
import sys

from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite


class Judges:
    """A judge for each of the settings that were asked for, made when first used."""

    def __init__(self):
        self._open = {}

    async def with_settings(self, settings):
        if settings not in self._open:
            judge = LocalJudge(settings)
            await judge.__aenter__()
            self._open[settings] = judge
        return self._open[settings]

    async def close(self):
        judges, self._open = self._open, {}
        for judge in judges.values():
            await judge.close()


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


async def answer(judges, request):
    if "programs" not in request:
        await judges.close()
        return {"results": [], "restarts": 0}
    judge = await judges.with_settings(JudgeSettings(**request["settings"]))
    before = judge.restarts
    results = await asyncio.gather(*(judged(judge, program, request["seconds"]) for program in request["programs"]))
    return {"results": results, "restarts": judge.restarts - before}


async def main():
    judges = Judges()
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await answer(judges, json.loads(line))), flush=True)  # noqa: T201
    await judges.close()


if __name__ == "__main__":
    asyncio.run(main())
