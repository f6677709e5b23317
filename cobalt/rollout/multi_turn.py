"""Multi turn: programs are judged on the public tests, the first failure goes back, the model tries again.

The protocol is the paper's (its code: `run_multi_turn_vllm.py`): the first turn is shared (`responses` of a single-turn
file) or drawn here, each sample then is a conversation of its own, and an episode goes on for the given number of
turns even when every public test passes. Conversations do not wait for one another.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from cobalt.conversation import (
    ALL_PUBLIC_PASSED,
    Message,
    PromptSet,
    TruncatedThinking,
    first_messages,
    history_text,
    load_prompts,
)
from cobalt.engine import Call, Completion, Engine, GenerationSettings
from cobalt.errors import UserError
from cobalt.files import check_files
from cobalt.judge import ExecResult, Judge
from cobalt.problem import Problem, TestSuite, load_problems
from cobalt.records import RecordFile
from cobalt.rollout.judging import ProblemJudge
from cobalt.rollout.runner import check_concurrency, run_all
from cobalt.rollout.single_turn import completion_columns, seeded, without_unknown_costs
from cobalt.trajectory.perturbation import FIELD, perturbed_tests

PublicTests = Literal["benign", "perturbed"]


@dataclass(frozen=True, slots=True)
class MultiTurnRun:
    """One multi-turn run.

    Attributes:
        input_file: Problems, or the records of a single-turn run, whose `responses` are then the first turn.
        output_file: Result; resumed when it exists.
        generation: Sampling; `n` is used only where the input has no `responses`.
        turns: Turns after the first one (paper: 2 to collect trajectories, 8 to evaluate).
        public_tests: The tests that feedback comes from; "perturbed": those of preproc/run_perturbation.py.
        enable_thinking, truncated_thinking: What later turns see of a response (`cobalt.conversation.history_text`).
        prompts: Prompt set, by name or folder.
        concurrency: Problems worked on at a time.
    """

    input_file: Path
    output_file: Path
    generation: GenerationSettings
    turns: int = 8
    public_tests: PublicTests = "benign"
    enable_thinking: bool = False
    truncated_thinking: TruncatedThinking = "keep"
    prompts: str = "paper"
    concurrency: int = 64

    def __post_init__(self) -> None:
        if self.turns < 0:
            raise UserError(f"turns is {self.turns}: it must be 0 or more")
        check_concurrency(self.concurrency)
        load_prompts(self.prompts)
        check_files([self.input_file], [self.output_file])


@dataclass(frozen=True, slots=True)
class _Conversation:
    """One finished conversation: its messages, and one entry per turn in the two lists."""

    messages: list[Message]
    completions: list[Completion]
    results: list[ExecResult]


async def run_multi_turn(run: MultiTurnRun, engine: Engine, judge: Judge) -> int:
    """Make the run's records.

    A record is the input record's fields and `conversations` [sample][message], each ending with the feedback on its
    last program; `raw_responses`, `public_pass_rates`, `public_exec_results`, `finish_reasons`, `prompt_tokens`,
    `completion_tokens` and `errors`, all [turn][sample]; `public_tests`, which tests gave the feedback; and where the
    engine knows any cost, `costs` in US dollars. Tokens and costs of turn 0 are those of its single-turn run.

    Returns:
        How many problems failed.

    Raises:
        UserError: bad input, or a result that other settings made.
        ServiceDown: engine or judge is not running.
    """
    prompts = load_prompts(run.prompts)
    problems = load_problems(run.input_file)
    for problem in problems:
        if len(problem.public_tests) == 0:
            raise UserError(
                f"{run.input_file}: problem {problem.id!r} has no public tests (field 'public_test_cases'),"
                " and feedback comes from them"
            )
        _feedback_tests(run, problem)
        _recorded_first_turn(problem)

    async def work(problem: Problem) -> dict[str, Any]:
        messages = first_messages(problem, prompts)
        first = _recorded_first_turn(problem)
        if first is None:
            call = Call(problem.id, turn=0)
            first = await engine.generate(messages, seeded(run.generation, call), call)
        judge_response = ProblemJudge(judge, _feedback_tests(run, problem))
        conversations = await asyncio.gather(
            *(
                _converse(run, engine, judge_response, prompts, problem, sample, list(messages), completion)
                for sample, completion in enumerate(first)
            )
        )
        return dict(problem.record) | {
            "instruction": messages[-1]["content"],
            "public_tests": run.public_tests,
            **_columns(conversations, run.turns),
        }

    with RecordFile(run.output_file) as output:
        arguments = {
            "stage": "multi_turn",
            "generation": run.generation.model_dump(),
            "turns": run.turns,
            "public_tests": run.public_tests,
            "enable_thinking": run.enable_thinking,
            "truncated_thinking": run.truncated_thinking,
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
            description="multi turn",
        )


def _feedback_tests(run: MultiTurnRun, problem: Problem) -> TestSuite:
    """The tests that feedback comes from.

    Raises:
        UserError: perturbed tests are asked for, and the problem has none.
    """
    if run.public_tests == "benign":
        return problem.public_tests
    try:
        tests = perturbed_tests(problem)
    except UserError as error:
        raise UserError(f"{run.input_file}: problem {problem.id!r}: {error}") from None
    if tests is None:
        raise UserError(
            f"{run.input_file}: problem {problem.id!r} has no perturbed tests (field {FIELD!r}):"
            " run preproc/run_perturbation.py first"
        )
    return tests


async def _converse(
    run: MultiTurnRun,
    engine: Engine,
    judge_response: ProblemJudge,
    prompts: PromptSet,
    problem: Problem,
    sample: int,
    messages: list[Message],
    completion: Completion,
) -> _Conversation:
    """Carry one conversation from its first completion through `run.turns` more."""
    one = run.generation.model_copy(update={"n": 1})
    done = _Conversation(messages, [], [])
    for turn in range(run.turns + 1):
        if turn > 0:
            call = Call(problem.id, turn, sample)
            [completion] = await engine.generate(messages, seeded(one, call), call)
        result = await judge_response(completion.text)
        done.completions.append(completion)
        done.results.append(result)
        feedback = result.first_failure()
        shown = history_text(completion.text, run.enable_thinking, run.truncated_thinking)
        messages += [
            {"role": "assistant", "content": shown},
            {"role": "user", "content": prompts.feedback(ALL_PUBLIC_PASSED if feedback is None else feedback)},
        ]
    return done


def _columns(conversations: list[_Conversation], turns: int) -> dict[str, Any]:
    """The record's fields, [turn][sample] but for the conversations."""
    columns: dict[str, Any] = {
        "conversations": [conversation.messages for conversation in conversations],
        "raw_responses": [],
        "public_pass_rates": [],
        "public_exec_results": [],
        **{name: [] for name in completion_columns([])},
    }
    for turn in range(turns + 1):
        results = [conversation.results[turn] for conversation in conversations]
        completions = [conversation.completions[turn] for conversation in conversations]
        columns["raw_responses"].append([completion.text for completion in completions])
        columns["public_pass_rates"].append([result.pass_rate for result in results])
        columns["public_exec_results"].append([result.to_record() for result in results])
        for name, values in completion_columns(completions).items():
            columns[name].append(values)
    everything = (completion for conversation in conversations for completion in conversation.completions)
    return without_unknown_costs(columns, everything)


def _recorded_first_turn(problem: Problem) -> list[Completion] | None:
    """The cached first turn of a single-turn record, or None.

    Raises:
        UserError: `responses` is there but is not a non-empty list of strings, or what goes with it does not fit.
    """
    responses = problem.record.get("responses")
    if responses is None:
        return None
    if not isinstance(responses, list) or not responses or not all(isinstance(text, str) for text in responses):
        raise UserError(f"problem {problem.id!r}: field 'responses' must be a non-empty list of strings")
    columns: dict[str, list[Any]] = {"text": responses}
    names = {
        "finish_reason": "finish_reasons",
        "prompt_tokens": "prompt_tokens",
        "completion_tokens": "completion_tokens",
        "cost": "costs",
        "message": "errors",
    }
    for field, name in names.items():
        column = problem.record.get(name)
        if column is not None:
            if not isinstance(column, list) or len(column) != len(responses):
                raise UserError(f"problem {problem.id!r}: field {name!r} must have one entry for each response")
            columns[field] = column
    try:
        return [
            Completion(**({"finish_reason": "stop"} | dict(zip(columns, row, strict=True))))
            for row in zip(*columns.values(), strict=True)
        ]
    except ValidationError as error:
        field_of_error = error.errors()[0]["loc"][0]
        raise UserError(f"problem {problem.id!r}: a recorded {field_of_error} is malformed") from None
