"""The repair episode: the environment in which a model writes programs, with any generator of responses.

    episode = Episode(first_messages(problem, prompts), problem.public_tests, prompts, turns=9, enable_thinking=True)
    while not episode.done:
        response = ...                                  # from `episode.messages`
        step = await episode.step(response, judge)      # `step.message` is the next user message

A rollout script steps an episode over HTTP, veRL's agent loop steps it token by token, and a writer of demonstrations
steps it without a judge service (`observe`). The rules are the paper's (as in its code, `run_multi_turn_vllm.py`). No
other module implements them:

- The feedback is the first failing public test in list order, and only that one.
- An episode goes on after every public test passes, because hidden tests may still fail.
- The history keeps `cobalt.episode.history_text` of a response.

This module generates nothing, knows no service and no reward, and writes no files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cobalt.episode import ALL_PUBLIC_PASSED, Message, PromptSet, TruncatedThinking, history_text, program_of
from cobalt.judge import ExecResult, Judge
from cobalt.problems.problem import TestSuite


@dataclass(frozen=True, slots=True)
class Step:
    """An episode's answer to one response.

    Attributes:
        program: The program of the response; None if the response has no program.
        result: The program's result on the episode's tests; without a program every test fails.
        message: The next user message, with the feedback. The last response of an episode has one too.
        best_pass_rate: Highest share of the episode's tests that one of the programs so far passes, 0 to 1.
        done: Whether this was the last response of the episode.
    """

    program: str | None
    result: ExecResult
    message: Message
    best_pass_rate: float
    done: bool


class Episode:
    """One conversation about one problem; the head of the module has the rules.

    Attributes:
        messages: The conversation so far. It ends with the user message that the next response answers.
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
            messages: The first messages (`cobalt.episode.first_messages`), or a partial trajectory to continue.
            tests: The tests that feedback comes from: the problem's public tests, or perturbed ones.
            prompts: The prompts that make the feedback messages.
            turns: Number of responses until the episode is done; with 0 it is done already.
            enable_thinking: Whether the history keeps only what follows the thinking; see `history_text`.
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
        """Whether all turns have been taken."""
        return self._turns_left < 1

    async def step(self, response: str, judge: Judge) -> Step:
        """Judge the program of a response on the episode's tests, and answer it.

        Args:
            response: What the model wrote, thinking included.
            judge: Runs the program. Samples of a problem repeat programs, so they should share a `RememberingJudge`.

        Raises:
            InfrastructureError: the judge failed; the episode is unchanged, and the step can be tried again.
            ValueError: the episode is done.
        """
        self._check_not_done()
        return self.observe(response, await judge_response(judge, response, self._tests))

    def observe(self, response: str, result: ExecResult) -> Step:
        """Answer a response whose program has been judged already; see `step`.

        Args:
            response: What the model wrote, thinking included.
            result: The program's result. The feedback uses its first failing test only; the pass rate uses all tests.

        Raises:
            ValueError: the episode is done.
        """
        self._check_not_done()
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

    def _check_not_done(self) -> None:
        if self.done:
            raise ValueError("the episode is done")


async def judge_response(judge: Judge, response: str, tests: TestSuite) -> ExecResult:
    """The result of a response's program on some tests; without a program every test fails.

    Raises:
        InfrastructureError: the judge failed.
    """
    program = program_of(response)
    if program is None:
        return ExecResult.no_code(len(tests))
    return await judge.judge(program, tests)
