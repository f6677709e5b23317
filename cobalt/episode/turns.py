"""The turns of a conversation: what the model is sent, and which program a response stands for.

One rule decides the program of a response everywhere (public tests, hidden tests, rewards): the last fenced
block of the whole answer. The 6,000-character cap shortens only what later turns show of a response.
"""

from typing import Literal

from typing_extensions import TypedDict

from cobalt.episode.program import extract_code
from cobalt.episode.prompt_set import PromptSet
from cobalt.episode.thinking import CLOSE, OPEN, split_thinking
from cobalt.problems.problem import Problem
from cobalt.stage.errors import UserError

HISTORY_CHARACTERS = 6000
"""Number of characters of a response that the history keeps with `--enable_thinking` (paper)."""

TruncatedThinking = Literal["keep", "drop"]
"""Rule of the history for a response that was cut off inside its thinking: "keep" its beginning (paper), or "drop"
all of it."""

ALL_PUBLIC_PASSED = (
    "The program passes every public test. Look for edge cases that these tests may miss, and fix whatever "
    "could still fail on the hidden tests."
)
"""The feedback when no public test fails; the episode goes on (paper)."""


class Message(TypedDict):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: str


def first_messages(problem: Problem, prompts: PromptSet) -> list[Message]:
    """System message and first user message; the problem's own `instruction` wins over the template."""
    instruction = problem.instruction
    if instruction is None:
        instruction = prompts.first_turn(problem.question, problem.tests.fn_name)
    return opening_messages(instruction, prompts)


def check_wording(problem: Problem, prompts: PromptSet) -> None:
    """Raise UserError if a problem's `instruction`, which the model is sent, is not what a named prompt set words."""
    worded = prompts.first_turn(problem.question, problem.tests.fn_name)
    if problem.instruction not in (None, worded):
        raise UserError(
            f"problem {problem.id!r} has a first message of its own (field 'instruction'), in other words than those of"
            " --prompts: leave --prompts out, or make the file again with the --prompts of the command that made it"
        )


def opening_messages(instruction: str, prompts: PromptSet) -> list[Message]:
    """System message, unless the prompt set's is empty, and the instruction as the user's message."""
    messages: list[Message] = [{"role": "user", "content": instruction}]
    if prompts.system:
        messages.insert(0, {"role": "system", "content": prompts.system})
    return messages


def history_text(response: str, enable_thinking: bool, truncated_thinking: TruncatedThinking = "keep") -> str:
    """Text of a response for later turns: at most `HISTORY_CHARACTERS` characters of it with `enable_thinking` (paper).

    Args:
        response: The whole response, thinking included.
        enable_thinking: Keep what follows the last `</think>`, stripped; keep a response without `</think>` as it is.
            False: keep every response as it is, however long.
        truncated_thinking: "drop" keeps nothing of a response that opens `<think>` and never closes it.
    """
    if not enable_thinking:
        return response
    if CLOSE in response:
        response = response.rpartition(CLOSE)[2].strip()
    elif truncated_thinking == "drop" and response.lstrip().startswith(OPEN):
        response = ""
    return response[:HISTORY_CHARACTERS]


def program_of(response: str) -> str | None:
    """The program that a response stands for, or None when its answer holds no fenced block."""
    return extract_code(split_thinking(response)[1])
