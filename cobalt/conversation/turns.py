"""The turns of a conversation: what the model is sent, and which program a response stands for.

One rule decides the program of a response everywhere (public tests, hidden tests, rewards): the last fenced
block of the whole answer. The 6,000-character cap shortens only what later turns show of it.
"""

from typing import Literal, TypedDict

from cobalt.conversation.extraction import extract_code
from cobalt.conversation.prompt_set import PromptSet
from cobalt.conversation.thinking import split_thinking
from cobalt.problem import Problem

HISTORY_CHARACTERS = 6000
"""How much of an answer the history keeps with `--enable_thinking` (paper)."""

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
    messages: list[Message] = [{"role": "user", "content": instruction}]
    if prompts.system:
        messages.insert(0, {"role": "system", "content": prompts.system})
    return messages


def history_text(response: str, enable_thinking: bool) -> str:
    """What later turns see of a response.

    With thinking on: the answer alone, cut after its first `HISTORY_CHARACTERS` characters (paper). With
    thinking off: the response as it is.
    """
    if not enable_thinking:
        return response
    return split_thinking(response)[1][:HISTORY_CHARACTERS]


def program_of(response: str) -> str | None:
    """The program that a response stands for, or None when its answer holds no fenced block."""
    return extract_code(split_thinking(response)[1])
