"""Groups of judged responses to one problem, which offline training reads.

A file has one group in each line (JSONL):

    {"id": "p00001/0", "problem_id": "p00001", "source": "codenet", "contrast": "required",
     "messages": [{"role": "user", "content": "..."}],
     "responses": [{"text": "...", "status": "accepted", "reward": 1.0, "origin": "s000000001", "context": []}, ...]}

Every field is required and no other field is allowed, so that a file of another version is refused instead of misread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from cobalt.episode import Message
from cobalt.stage.errors import UserError, naming
from cobalt.stage.records import checked, iterate_records

Contrast = Literal["required", "any"]
"""Whether a group must hold an accepted response and one that is not. "any": its rewards may all be equal."""


class Status(StrEnum):
    """Outcome of a program on all tests of its problem: accepted, or the reason why it failed."""

    ACCEPTED = "accepted"
    PRESENTATION_ERROR = "presentation_error"  # right but for white space or layout
    WRONG_ANSWER = "wrong_answer"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    RUNTIME_ERROR = "runtime_error"
    COMPILE_ERROR = "compile_error"
    NO_CODE = "no_code"  # a response without a program


@dataclass(frozen=True, slots=True)
class OfflineResponse:
    """One response to the problem of its group.

    Attributes:
        text: Response that the policy should have written, without a token that marks its end.
        status: Outcome of its program.
        reward: The reward, without a unit.
        origin: A submission's id, or the sample and turn in a result file.
        context: The messages between those of the group and the response; empty for a first turn.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    text: str
    status: Status
    reward: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    origin: str
    context: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class OfflineGroup:
    """Responses to one problem at the same turn of a conversation.

    Rewards need not follow the statuses: a flaw of the form costs 0.9 of Cobalt's reward (`cobalt.reward`).

    Attributes:
        id: Unique in its file.
        problem_id: The problem, which may have several groups; they share their messages and no response.
        source: The data set, such as "codenet".
        messages: The problem's prompt, ending with the user's message.
        responses: At least two, in no meaningful order. Their contexts have the same number of messages.
        contrast: See `Contrast`.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    id: str
    problem_id: str
    source: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    responses: Annotated[tuple[OfflineResponse, ...], Field(min_length=2)]
    contrast: Contrast

    def __post_init__(self) -> None:
        if self.messages[-1]["role"] != "user":
            raise UserError("field 'messages' must end with the user's message")
        if self.contrast == "required" and len({one.status is Status.ACCEPTED for one in self.responses}) < 2:
            raise UserError("field 'responses' must hold one that is accepted and one that is not")
        contexts = [[message["role"] for message in response.context] for response in self.responses]
        if any(roles != ["assistant", "user"] * (len(contexts[0]) // 2) for roles in contexts):
            raise UserError(
                "field 'responses': the contexts of a group must have the same number of messages, each of the"
                " assistant followed by one of the user"
            )

    def prompt(self, response: OfflineResponse) -> list[Message]:
        """The messages that a response of the group answers."""
        return [*self.messages, *response.context]


def read_groups(path: Path) -> Iterator[OfflineGroup]:
    """Read the groups of a file, one at a time; those of one problem follow each other.

    Raises:
        UserError: the file cannot be read or holds no group, an id occurs twice, or a group is malformed.
    """
    record = None
    for record in iterate_records(path):
        with naming(f"{path}: group {record['id']!r}"):
            group = checked(OfflineGroup, record)
        yield group
    if record is None:
        raise UserError(f"{path}: the file holds no group")
