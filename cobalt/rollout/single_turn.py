"""Single turn: draw n programs for each problem and judge each on all of its tests."""

import asyncio
import dataclasses
import shlex
from collections import Counter
from typing import Any

from pydantic.dataclasses import dataclass

from cobalt.engine import Call, Engine, GenerationSettings
from cobalt.episode import first_messages, load_prompts
from cobalt.episode.episode import judge_response
from cobalt.episode.record import decode_first_turns, decode_results, encode_single_turn
from cobalt.judge import Judge, RememberingJudge
from cobalt.problems.problem import Problem, load_problems
from cobalt.rollout.shared import RolloutSettings, cut_off, percent, run_rollout, seeded, turn_of
from cobalt.stage.records import iterate_records
from cobalt.stage.run import Outcome, quoted, stage
from cobalt.stage.service_flags import same_services

_OF_LATER_TURNS = (
    "prompts",
    "max_tokens",
    "temperature",
    "top_p",
    "api_base",
    "chat_template_thinking",
    "seed",
    "model",
    "engine_kind",
)
"""Settings that multi turn must have the same values of."""


@dataclass(frozen=True)
class SampleSettings(RolloutSettings):
    """Draw n programs for each problem and judge each on all of its tests.

    The engine is vLLM in this process (--model) or behind a URL (--engine_url), and so is the judge. A running `cobalt
    serve` is used where nothing else is named. Running the same command again resumes.
    """

    stage = "single_turn"


@stage
async def sample(settings: SampleSettings, engine: Engine | None = None, judge: Judge | None = None) -> Outcome:
    """Write the records of a run.

    A record is the problem's fields, `instruction` as it was sent, and the fields of `encode_single_turn`.

    Args:
        settings: Settings of the run.
        engine: Generates; None: the engine of the settings.
        judge: Judges; None: the judge of the settings.

    Raises:
        UserError: bad input, a result that other settings made, or a replay without some response.
        ServiceDown: engine or judge is not running.
    """
    problems = load_problems(settings.input_file)
    chosen = settings.chosen(problems)
    settings.check_wording(chosen)
    prompts = load_prompts(settings.prompts)

    async def work(problem: Problem, engine: Engine, judge: Judge, generation: GenerationSettings) -> dict[str, Any]:
        messages = first_messages(problem, prompts)
        call = Call(problem.id, turn=0)
        turns = list(map(turn_of, await engine.generate(messages, seeded(generation, call), call)))
        remembering = RememberingJudge(judge)  # the samples of a problem repeat programs
        results = await asyncio.gather(*(judge_response(remembering, turn.response, problem.tests) for turn in turns))
        return dict(problem.record) | {"instruction": messages[-1]["content"], **encode_single_turn(turns, results)}

    planned = {problem.id: settings.num_completions for problem in chosen}
    failed = await run_rollout(settings, problems, planned, (engine, judge), work)
    return Outcome(failed=failed) if failed else sampled(settings)


def sampled(settings: SampleSettings) -> Outcome:
    """The outcome of a run without failures: the share of programs that pass all tests."""
    result = settings.output_file
    programs = passed = problems = 0
    ends: Counter[str | None] = Counter()
    for record in iterate_records(result, unfinished=True):
        results = decode_results(record, len(Problem.parse(record).tests))
        problems += 1
        ends.update(turn.finish_reason for turn in decode_first_turns(record) or ())
        programs += len(results)
        passed += sum(result.all_passed for result in results)
    repair = ["cobalt", "repair", "-i", str(result), "-o", str(result.with_name("multi_turn.jsonl"))]
    for flag in dataclasses.fields(settings):
        value = getattr(settings, flag.name)
        # Without a model the repair would be done by another engine.
        if flag.name == "model_name" or (flag.name in _OF_LATER_TURNS and value != flag.default):
            repair += [f"--{'model' if flag.name == 'model_name' else flag.name}", str(value)]
    repair += same_services(settings)
    return Outcome(
        tables=cut_off(ends),
        wrote=f"{result}: {problems} problems, {programs} programs, of which {percent(passed, programs)} pass all"
        " tests",
        next=f"{shlex.join(repair)}, or for pass@k of these programs: cobalt evaluate -i {quoted(result)}"
        f" -o {quoted(result.with_name('evaluation.jsonl'))}",
    )
