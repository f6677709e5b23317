"""The repair episode: the environment in which a model writes programs, with any generator of responses.

    episode = Episode(first_messages(problem, prompts), problem.public_tests, prompts, turns=9, enable_thinking=True)
    while not episode.done:
        response = ...                                          # from `episode.messages`
        turn = await episode.step(Turn(response), judge)        # `turn.feedback` is the next user message

Rollouts, veRL's agent loop and the writer of demonstrations step it. The rules are the paper's (as in its code,
`run_multi_turn_vllm.py`), and no other module implements them:

- The feedback is the first failing public test in list order, and only that one.
- An episode goes on after every public test passes, because hidden tests may still fail.
- The history keeps `cobalt.episode.history_text` of a response.
"""

from collections.abc import Sequence
from dataclasses import replace

from cobalt.episode import ALL_PUBLIC_PASSED, Message, PromptSet, TruncatedThinking, history_text, program_of
from cobalt.episode.trajectory import Turn
from cobalt.judge import ExecResult, Judge
from cobalt.problems.problem import TestSuite


class Episode:
    """One conversation about one problem; the head of the module has the rules.

    Attributes:
        messages: The conversation so far. It ends with the user message that the next response answers.
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
            truncated_thinking: Rule of the history for a response cut off inside its thinking; see `history_text`.
        """
        self.messages = list(messages)
        self._tests = tests
        self._prompts = prompts
        self._turns_left = turns
        self._enable_thinking = enable_thinking
        self._truncated_thinking = truncated_thinking

    @property
    def done(self) -> bool:
        """Whether all turns have been taken."""
        return self._turns_left < 1

    async def step(self, turn: Turn, judge: Judge) -> Turn:
        """Judge the program of a turn's response on the episode's tests, and answer it.

        Samples of a problem repeat programs, so they should share a `RememberingJudge`.

        Returns:
            The turn with its result on the episode's tests as the public one, and with its feedback, which the last
            turn of an episode has too.

        Raises:
            InfrastructureError: the judge failed; the episode is unchanged, and the step can be tried again.
            ValueError: the episode is done.
        """
        return self.observe(turn, await judge_response(judge, turn.response, self._tests))

    def observe(self, turn: Turn, result: ExecResult) -> Turn:
        """Answer a turn whose program has been judged already; see `step`."""
        if self.done:
            raise ValueError("the episode is done")
        failure = result.first_failure()
        feedback = self._prompts.feedback(ALL_PUBLIC_PASSED if failure is None else failure)
        shown = history_text(turn.response, self._enable_thinking, self._truncated_thinking)
        self.messages += [{"role": "assistant", "content": shown}, {"role": "user", "content": feedback}]
        self._turns_left -= 1
        return replace(turn, public_pass_rate=result.pass_rate, public_result=result, feedback=feedback)


async def judge_response(judge: Judge, response: str, tests: TestSuite) -> ExecResult:
    """The result of a response's program on some tests; without a program every test fails. Raises as the judge."""
    program = program_of(response)
    if program is None:
        return ExecResult.no_code(len(tests))
    return await judge.judge(program, tests)
