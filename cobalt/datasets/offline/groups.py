"""Groups of judged responses to one problem, which offline training reads.

A file has one group in each line (JSONL):

    {"id": "p00001/0", "problem_id": "p00001", "source": "codenet", "contrast": "required",
     "messages": [{"role": "user", "content": "..."}],
     "responses": [{"text": "...", "status": "accepted", "reward": 1.0, "origin": "s000000001", "context": []}, ...]}

Every field is required and no other field is allowed, so that a file of another version is refused instead of misread.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from cobalt.episode import Message
from cobalt.stage.errors import UserError, naming
from cobalt.stage.records import checked, iterate_records

Contrast = Literal["required", "any"]
"""Whether a group must hold an accepted response and one that is not. "any": its rewards may all be equal."""


class Status(StrEnum):
    """What became of a program on all tests of its problem: accepted, or why it failed."""

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
        text: What the policy should have written, without a token that marks its end.
        status: What became of its program.
        reward: The reward, without a unit.
        origin: A submission's id, or the sample and turn in a result file.
        context: The messages between those of the group and the response; empty for a first turn.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    text: str
    status: Status
    reward: Annotated[float, Field(strict=True)]
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
    messages: tuple[Message, ...]
    responses: tuple[OfflineResponse, ...]
    contrast: Contrast

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1]["role"] != "user":
            raise UserError("field 'messages' must end with the user's message")
        if len(self.responses) < 2:
            raise UserError("field 'responses' must hold two or more")
        if self.contrast == "required" and len({one.status is Status.ACCEPTED for one in self.responses}) < 2:
            raise UserError("field 'responses' must hold one that is accepted and one that is not")
        if not all(math.isfinite(response.reward) for response in self.responses):
            raise UserError("field 'responses' holds a reward that is not a finite number")
        turns = {len(response.context) for response in self.responses}
        if len(turns) > 1:
            raise UserError("field 'responses': the contexts of a group must have the same number of messages")
        roles = [[message["role"] for message in response.context] for response in self.responses]
        if any(own != ["assistant", "user"] * (len(own) // 2) for own in roles):
            raise UserError("field 'context' must hold answers of the assistant, each followed by a user's message")

    def prompt(self, response: OfflineResponse) -> list[Message]:
        """The messages that a response of the group answers."""
        return [*self.messages, *response.context]

    def to_record(self) -> dict[str, Any]:
        """The group as JSON-able values."""
        return asdict(self)

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> "OfflineGroup":
        """Read what `to_record` wrote; raises UserError, which names the field, if one is missing, unknown or bad."""
        return checked(cls, record)


def read_groups(path: Path) -> Iterator[OfflineGroup]:
    """Read the groups of a file, one at a time; those of one problem follow each other.

    Raises:
        UserError: the file cannot be read or holds no group, an id occurs twice, or a group is malformed.
    """
    empty = True
    for record in iterate_records(path):
        empty = False
        with naming(f"{path}: group {record['id']!r}"):
            group = OfflineGroup.parse(record)
        yield group
    if empty:
        raise UserError(f"{path}: the file holds no group")
