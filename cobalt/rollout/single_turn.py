"""Single turn: draw n programs for each problem and judge each on all of its tests."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from cobalt.engine import Call, Engine
from cobalt.episode import first_messages, load_prompts
from cobalt.episode.episode import judge_response
from cobalt.episode.record import encode_single_turn
from cobalt.judge import Judge, RememberingJudge
from cobalt.problems.problem import Problem, load_problems
from cobalt.rollout.progress import CountingEngine
from cobalt.rollout.shared import (
    RolloutSettings,
    check_replay,
    decide_samples,
    run_rollout,
    seeded,
    turn_of,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SingleTurnSettings(RolloutSettings):
    """Settings of one single-turn run; its input are problems."""


async def run_single_turn(settings: SingleTurnSettings, engine: Engine, judge: Judge) -> int:
    """Write the records of a run.

    A record is the problem's fields, `instruction` as it was sent, and the fields of `encode_single_turn`.

    Returns:
        How many problems failed.

    Raises:
        UserError: bad input, a result that other settings made, or a replay that holds none of the problems.
        ServiceDown: engine or judge is not running.
    """
    settings.check()
    prompts = load_prompts(settings.prompts)
    problems = load_problems(settings.input_file)
    chosen = settings.chosen(problems)
    settings.check_wording(chosen)
    without = sum(not problem.public_tests for problem in chosen)
    if without:
        logger.info(
            "%d of %d problems have no public tests, which cobalt repair needs: cobalt split makes them",
            *(without, len(chosen)),
        )
    check_replay(engine, chosen, 1)
    settings = await decide_samples(settings, engine)
    counting = CountingEngine(engine, turns=1, max_tokens=settings.generation.max_tokens)

    async def work(problem: Problem) -> dict[str, Any]:
        messages = first_messages(problem, prompts)
        call = Call(problem.id, turn=0)
        turns = list(map(turn_of, await counting.generate(messages, seeded(settings.generation, call), call)))
        remembering = RememberingJudge(judge)  # the samples of a problem repeat programs
        results = await asyncio.gather(*(judge_response(remembering, turn.response, problem.tests) for turn in turns))
        return dict(problem.record) | {
            "instruction": messages[-1]["content"],
            **encode_single_turn(turns, results),
        }

    return await run_rollout(
        settings, problems, work, counting, judge, stage="single_turn", responses=lambda _: settings.generation.n
    )
