"""The trajectory, as in the paper: a problem, and the programs that a model wrote for it in one conversation.

In memory the order of axes is sample, then turn. A problem has trajectories, a trajectory has turns, and a turn has the
model's response and the test results of its program. Result files have other axes, and only `episode.record`
knows them. This module reads no files, judges no programs and writes no messages.
"""

from dataclasses import dataclass
from typing import Literal

from cobalt.episode import Message, program_of
from cobalt.judge import ExecResult, VerdictKind
from cobalt.problems.problem import Problem
from cobalt.stage.errors import UserError

FinishReason = Literal["stop", "length", "prompt_too_long", "error"]
"""End of a response: by itself, at a token limit, before it began (no room after the prompt), by an engine error."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One response of a trajectory. A field is None if its file does not have it or its stage has not run yet.

    Attributes:
        response: Text that the model wrote, with its thinking if the file has it.
        finish_reason: Reason why the response ended.
        prompt_tokens: Number of tokens in the conversation that was sent to the model.
        completion_tokens: Number of generated tokens.
        cost: Price of the response in US dollars.
        error: The engine's error; "" if there was none.
        public_pass_rate: Share of the public tests that the program passes, 0 to 1.
        public_result: The program's result on the public tests.
        hidden_pass_rate: Share of the hidden tests that the program passes, 0 to 1.
        hidden_verdicts: The outcome of each hidden test.
        feedback: The user message that follows the response.
    """

    response: str
    finish_reason: FinishReason | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    error: str = ""
    public_pass_rate: float | None = None
    public_result: ExecResult | None = None
    hidden_pass_rate: float | None = None
    hidden_verdicts: tuple[VerdictKind, ...] | None = None
    feedback: str | None = None

    @property
    def program(self) -> str | None:
        """The program that public tests, hidden tests and rewards judge; None for a response without one."""
        return program_of(self.response)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One conversation about a problem.

    Attributes:
        problem: The problem.
        sample: Index of the trajectory among those of its problem.
        messages: Messages to the model: the first ones, then for each turn the history text of the response and the
            feedback. Empty if the file has responses only.
        turns: The turns in order, at least one.
    """

    problem: Problem
    sample: int
    messages: list[Message]
    turns: tuple[Turn, ...]

    def context(self, turn: int) -> list[Message]:
        """The messages through the feedback on the first `turn` programs; 0 gives the messages before any program."""
        opening = next(index for index, message in enumerate(self.messages) if message["role"] == "assistant")
        return self.messages[: opening + 2 * turn]

    @property
    def public_pass_rates(self) -> list[float]:
        """The public pass rate of each turn; raises UserError: the file does not have it."""
        return self._known([turn.public_pass_rate for turn in self.turns], "public_pass_rates", "a multi-turn script")

    @property
    def hidden_pass_rates(self) -> list[float]:
        """The hidden pass rate of each turn; raises UserError: the trajectory has not been evaluated."""
        return self._known([turn.hidden_pass_rate for turn in self.turns], "all_pass_rates", "eval_multi_turn.py")

    def _known(self, rates: list[float | None], field: str, script: str) -> list[float]:
        known = [rate for rate in rates if rate is not None]
        if len(known) != len(rates):
            raise UserError(f"it has no {field!r}: run {script} first")
        return known


@dataclass(frozen=True, slots=True)
class ProblemTrajectories:
    """A problem and its trajectories, which are one line of a result file.

    Attributes:
        problem: The problem; its `record` is the whole line.
        trajectories: The trajectories by sample, at least one; all have the same number of turns.
    """

    problem: Problem
    trajectories: tuple[Trajectory, ...]
