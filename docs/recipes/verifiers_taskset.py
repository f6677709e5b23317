"""A taskset of the library verifiers with the judge as its reward.

The tasks are the problems of a file. A failure of the judge raises `InfrastructureError`, after the judge's own
attempts. verifiers records it as the rollout's error, and the rollout has no reward.
"""

import asyncio
from pathlib import Path

import verifiers.v1 as vf

from cobalt.episode import first_messages, load_prompts
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.reward import RewardSettings, compute_reward, program_to_judge

SANDBOXES = asyncio.Semaphore(2)  # programs that run at once, however many rollouts there are


class CodeData(vf.TaskData):
    """A problem, and whether its reward requires thinking."""

    tests: str
    require_thinking: bool


class CodeTask(vf.Task[CodeData]):
    """A problem and its reward."""

    @vf.reward
    async def judged(self, trace: vf.Trace) -> float:
        """The paper's reward of the response."""
        settings = RewardSettings(require_thinking=self.data.require_thinking)
        program = program_to_judge(trace.last_reply, settings)
        if program is None:
            return compute_reward(trace.last_reply, None).total
        async with SANDBOXES, LocalJudge(JudgeSettings(concurrency=1)) as judge:
            result = await judge.judge(program, TestSuite.parse(self.data.tests))
        return compute_reward(trace.last_reply, result.pass_rate, settings=settings).total


class CodeConfig(vf.TasksetConfig):
    """Settings of the taskset: the file of problems, in the schema of TACO-Cobalt."""

    problems: Path = Path("problems.jsonl")
    require_thinking: bool = False
    """Whether a response without thinking tags has a flaw of form, as in the paper."""


class CodeTaskset(vf.Taskset[CodeTask, CodeConfig]):
    """The problems of a file."""

    def load(self):
        """A task for each problem."""
        prompts = load_prompts("program")
        for problem in load_problems(self.config.problems):
            *system, user = [message["content"] for message in first_messages(problem, prompts)]
            data = CodeData(
                name=str(problem.id),
                prompt=user,
                system_prompt="".join(system) or None,
                tests=problem.tests.to_json(),
                require_thinking=self.config.require_thinking,
            )
            yield CodeTask(data, self.config.task)


__all__ = ["CodeTaskset"]
