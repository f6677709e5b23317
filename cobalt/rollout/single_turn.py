"""Single turn: draw n programs for each problem and judge each on all of its tests."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.conversation import first_messages, load_prompts
from cobalt.engine import Call, Completion, Engine, GenerationSettings, derive_seed
from cobalt.files import check_files
from cobalt.judge import Judge
from cobalt.problem import Problem, load_problems
from cobalt.records import RecordFile
from cobalt.rollout.judging import ProblemJudge
from cobalt.rollout.runner import check_concurrency, run_all


@dataclass(frozen=True, slots=True)
class SingleTurnRun:
    """One single-turn run.

    Attributes:
        input_file: Problems.
        output_file: Result; resumed when it exists.
        generation: Sampling; its `seed` is the run's seed.
        prompts: Prompt set, by name or folder.
        concurrency: Problems worked on at a time.
    """

    input_file: Path
    output_file: Path
    generation: GenerationSettings
    prompts: str = "paper"
    concurrency: int = 64

    def __post_init__(self) -> None:
        check_concurrency(self.concurrency)
        load_prompts(self.prompts)
        check_files([self.input_file], [self.output_file])


async def run_single_turn(run: SingleTurnRun, engine: Engine, judge: Judge) -> int:
    """Make the run's records.

    A record is the problem's fields, `instruction` as it was sent, and one entry per sample in `responses`,
    `exec_results` (all tests, in order), `finish_reasons`, `prompt_tokens`, `completion_tokens` and `errors` ("" for
    none); where the engine knows any cost, also `costs` in US dollars.

    Returns:
        How many problems failed.

    Raises:
        UserError: bad input, or a result that other settings made.
        ServiceDown: engine or judge is not running.
    """
    prompts = load_prompts(run.prompts)
    problems = load_problems(run.input_file)

    async def work(problem: Problem) -> dict[str, Any]:
        messages = first_messages(problem, prompts)
        call = Call(problem.id, turn=0)
        completions = await engine.generate(messages, seeded(run.generation, call), call)
        judge_response = ProblemJudge(judge, problem.tests)
        results = await asyncio.gather(*(judge_response(completion.text) for completion in completions))
        return dict(problem.record) | {
            "instruction": messages[-1]["content"],
            "responses": [completion.text for completion in completions],
            "exec_results": [result.to_record() for result in results],
            **without_unknown_costs(completion_columns(completions), completions),
        }

    with RecordFile(run.output_file) as output:
        arguments = {
            "stage": "single_turn",
            "generation": run.generation.model_dump(),
            "prompts": prompts.digests,
            "engine": dict(await engine.describe()),
            "judge": dict(await judge.describe()),
        }
        return await run_all(
            problems,
            lambda problem: problem.id,
            work,
            output,
            arguments=arguments,
            inputs=[run.input_file],
            concurrency=run.concurrency,
            description="single turn",
        )


def seeded(generation: GenerationSettings, call: Call) -> GenerationSettings:
    """The run's settings with the seed of one call; a run without a seed stays without."""
    if generation.seed is None:
        return generation
    return generation.model_copy(update={"seed": derive_seed(generation.seed, call)})


def completion_columns(completions: Sequence[Completion]) -> dict[str, list[Any]]:
    """What a record keeps of completions besides their text, one entry each; `costs` None where one is not known."""
    return {
        "finish_reasons": [completion.finish_reason for completion in completions],
        "prompt_tokens": [completion.prompt_tokens for completion in completions],
        "completion_tokens": [completion.completion_tokens for completion in completions],
        "costs": [completion.cost for completion in completions],
        "errors": [completion.message for completion in completions],
    }


def without_unknown_costs(columns: dict[str, Any], completions: Iterable[Completion]) -> dict[str, Any]:
    """The columns of a record, without `costs` if no completion has one, as with models of one's own."""
    if all(completion.cost is None for completion in completions):
        columns.pop("costs")
    return columns
