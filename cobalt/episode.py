"""The repair episode: the environment that a model writes programs in, whoever generates its responses.

    episode = Episode(first_messages(problem, prompts), problem.public_tests, prompts, turns=9, enable_thinking=True)
    while not episode.done:
        response = ...                                  # from `episode.messages`
        step = await episode.step(response, judge)      # `step.message` is the next user message

A rollout script steps an episode over HTTP, an agent loop token by token, a writer of demonstrations without a judge
service (`observe`). The rules are the paper's (as in its code, `run_multi_turn_vllm.py`), and they live here alone:

- The feedback is the first failing public test in list order, and only that one.
- An episode goes on when every public test passes, for hidden tests may still fail.
- The history keeps `cobalt.conversation.history_text` of a response.

Nothing here generates, knows a service or a reward, or writes files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cobalt.conversation import (
    ALL_PUBLIC_PASSED,
    Message,
    PromptSet,
    TruncatedThinking,
    history_text,
    program_of,
)
from cobalt.judge import ExecResult, Judge
from cobalt.problem import TestSuite


@dataclass(frozen=True, slots=True)
class Step:
    """What an episode answers to one response.

    Attributes:
        program: The program of the response; None where it has none.
        result: The program's result on the episode's tests; every test fails without a program.
        message: The next user message, with the feedback. The last response of an episode has one too.
        best_pass_rate: Highest share of the episode's tests that one of its programs so far passes, 0 to 1.
        done: Whether this was the last response of the episode.
    """

    program: str | None
    result: ExecResult
    message: Message
    best_pass_rate: float
    done: bool


class Episode:
    """One conversation about one problem; see the module.

    Attributes:
        messages: The conversation so far, ending with a user message: what the next response answers.
        best_pass_rate: As in `Step`; 0.0 before the first response.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        tests: TestSuite,
        prompts: PromptSet,
        *,
        turns: int,
        enable_thinking: bool,
        truncated_thinking: TruncatedThinking = "keep",
    ) -> None:
        """Begin an episode.

        Args:
            messages: The opening (`cobalt.conversation.first_messages`), or a partial trajectory to go on from.
            tests: The tests that feedback comes from: the problem's public tests, or perturbed ones.
            prompts: Words the feedback messages.
            turns: Responses until the episode is done, at least one.
            enable_thinking: Whether the history keeps the thinking of a response; see `history_text`.
            truncated_thinking: What the history keeps of a response cut off inside its thinking; see `history_text`.
        """
        self.messages = list(messages)
        self.best_pass_rate = 0.0
        self._tests = tests
        self._prompts = prompts
        self._turns_left = turns
        self._enable_thinking = enable_thinking
        self._truncated_thinking = truncated_thinking

    @property
    def done(self) -> bool:
        """Whether all turns are taken."""
        return self._turns_left < 1

    async def step(self, response: str, judge: Judge) -> Step:
        """Judge the program of a response on the episode's tests, and answer it.

        Args:
            response: What the model wrote, thinking included.
            judge: Runs the program. Samples of a problem repeat programs: give them one `RememberingJudge`.

        Raises:
            InfrastructureError: the judge failed; the episode is as it was, and the step can be tried again.
        """
        return self.observe(response, await judge_response(judge, response, self._tests))

    def observe(self, response: str, result: ExecResult) -> Step:
        """Answer a response whose program is judged already; see `step`.

        Args:
            response: What the model wrote, thinking included.
            result: Its result; from the first failing test on nothing of it counts but that test's feedback.

        Raises:
            ValueError: the episode is done.
        """
        if self.done:
            raise ValueError("the episode is done")
        failure = result.first_failure()
        message: Message = {
            "role": "user",
            "content": self._prompts.feedback(ALL_PUBLIC_PASSED if failure is None else failure),
        }
        shown = history_text(response, self._enable_thinking, self._truncated_thinking)
        self.messages += [{"role": "assistant", "content": shown}, message]
        self.best_pass_rate = max(self.best_pass_rate, result.pass_rate)
        self._turns_left -= 1
        return Step(program_of(response), result, message, self.best_pass_rate, self.done)


async def judge_response(judge: Judge, response: str, tests: TestSuite) -> ExecResult:
    """The result of a response's program on some tests; without a program every test fails.

    Raises:
        InfrastructureError: the judge failed.
    """
    program = program_of(response)
    if program is None:
        return ExecResult.no_code(len(tests))
    return await judge.judge(program, tests)
