"""Repair of one problem: a conversation for each sample, from the first program to the last (`cobalt.episode.episode`).

The stages (`multi_turn`), the pocket world's look at its seed model and `cobalt.method` call it. No files, no services.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from cobalt.engine import Call, Engine, GenerationSettings
from cobalt.episode import PromptSet, TruncatedThinking, first_messages
from cobalt.episode.episode import Episode
from cobalt.episode.trajectory import Trajectory, Turn
from cobalt.judge import Judge, RememberingJudge
from cobalt.problems.problem import Problem, TestSuite
from cobalt.rollout.shared import seeded, turn_of


@dataclass(frozen=True, slots=True)
class RepairRules:
    """Rules of the conversations.

    Attributes:
        prompts: First and feedback messages.
        generation: Sampling; `n` is the number of conversations.
        programs: Programs of each conversation, the first one included.
        enable_thinking: Whether later turns see only what follows the thinking (`cobalt.episode.history_text`).
        truncated_thinking: Rule of later turns for a response cut off inside its thinking; see there.
    """

    prompts: PromptSet
    generation: GenerationSettings
    programs: int
    enable_thinking: bool = False
    truncated_thinking: TruncatedThinking = "keep"


async def repair_problem(
    problem: Problem,
    engine: Engine,
    judge: Judge,
    rules: RepairRules,
    *,
    tests: TestSuite | None = None,
    first: Sequence[Turn] | None = None,
) -> list[Trajectory]:
    """Have a model write programs for a problem; the first failing public test answers each of them.

    Args:
        problem: The problem.
        engine: Generates.
        judge: Judges; programs that samples and turns repeat are sent once.
        rules: Rules of the conversations.
        tests: The tests that feedback comes from; None: the problem's public tests.
        first: The first turn of each sample, if it is recorded.

    Returns:
        The trajectories by sample, each turn with its result on `tests`. Raises as engine and judge.
    """
    opening = first_messages(problem, rules.prompts)
    if first is None:
        call = Call(problem.id, turn=0)
        first = [turn_of(item) for item in await engine.generate(opening, seeded(rules.generation, call), call)]
    remembering = RememberingJudge(judge)
    one = rules.generation.model_copy(update={"n": 1})

    async def converse(sample: int, turn: Turn) -> Trajectory:
        episode = Episode(
            opening,
            problem.public_tests if tests is None else tests,
            rules.prompts,
            turns=rules.programs,
            enable_thinking=rules.enable_thinking,
            truncated_thinking=rules.truncated_thinking,
        )
        turns: list[Turn] = []
        while not episode.done:
            if turns:
                call = Call(problem.id, len(turns), sample)
                [completion] = await engine.generate(episode.messages, seeded(one, call), call)
                turn = turn_of(completion)
            turns.append(await episode.step(turn, remembering))
        return Trajectory(problem, sample, episode.messages, tuple(turns))

    return await asyncio.gather(*(converse(sample, turn) for sample, turn in enumerate(first)))
