"""Groups of judged responses to one prompt, which offline training reads: schema, reader and writer.

A group holds several responses to the same prompt. At least one of them is accepted, and at least one is not. A file
has one group in each line (JSONL):

    {"id": "p00001/0", "problem_id": "p00001", "source": "codenet",
     "messages": [{"role": "user", "content": "..."}],
     "responses": [{"text": "...", "status": "accepted", "reward": 1.0, "origin": "s000000001"}, ...]}

Every field is required and no other field is allowed, so that a file of another version is refused instead of misread.
Where groups come from, and which responses they hold, is decided elsewhere (`cobalt.datasets.offline`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cobalt.conversation import Message, program_of
from cobalt.errors import UserError
from cobalt.records import iterate_records


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
    """One response to the prompt of its group.

    Attributes:
        text: What the policy should have written, without a token that marks its end.
        status: What became of its program.
        reward: The reward, without a unit; of an accepted response it is above that of any other.
        origin: Where it comes from: a submission's id, or a place in a result file.
    """

    text: str
    status: Status
    reward: float
    origin: str

    @property
    def program(self) -> str | None:
        """The program of the response, as everywhere in this project; None if it has none."""
        return program_of(self.text)


@dataclass(frozen=True, slots=True)
class OfflineGroup:
    """Responses to one prompt.

    Attributes:
        id: Unique in its file.
        problem_id: The problem, which may have several groups; they share their messages and no response.
        source: The data set, such as "codenet".
        messages: The prompt, ending with the user's message.
        responses: At least two, in no meaningful order; at least one is accepted and at least one is not.
    """

    id: str
    problem_id: str
    source: str
    messages: tuple[Message, ...]
    responses: tuple[OfflineResponse, ...]

    def __post_init__(self) -> None:
        if not self.messages or self.messages[-1]["role"] != "user":
            raise UserError("field 'messages' must end with the user's message")
        accepted = [response.reward for response in self.responses if response.status is Status.ACCEPTED]
        others = [response.reward for response in self.responses if response.status is not Status.ACCEPTED]
        if not accepted or not others:
            raise UserError("field 'responses' must hold one that is accepted and one that is not")
        if not all(map(math.isfinite, accepted + others)) or min(accepted) <= max(others):
            raise UserError("field 'responses': the reward of an accepted one must be above that of the others")

    def to_record(self) -> dict[str, Any]:
        """The group as JSON-able values."""
        return asdict(self)

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> "OfflineGroup":
        """Read what `to_record` wrote.

        Raises:
            UserError: a field is missing, unknown or malformed; the message names it.
        """
        _check_fields(record, {"id": str, "problem_id": str, "source": str, "messages": list, "responses": list})
        return cls(
            record["id"],
            record["problem_id"],
            record["source"],
            tuple(_message(message) for message in record["messages"]),
            tuple(_response(response) for response in record["responses"]),
        )


def read_groups(path: Path) -> Iterator[OfflineGroup]:
    """Read the groups of a file, one at a time.

    Groups of one problem follow each other; whoever trains on them shuffles them.

    Raises:
        UserError: the file cannot be read or holds no group, an id occurs twice, or a group is malformed; the message
            names the group and the field.
    """
    empty = True
    for record in iterate_records(path):
        empty = False
        try:
            group = OfflineGroup.parse(record)
        except UserError as error:
            raise UserError(f"{path}: group {record['id']!r}: {error}") from None
        yield group
    if empty:
        raise UserError(f"{path}: the file holds no group")


def _message(value: Any) -> Message:
    _check_fields(value, {"role": str, "content": str}, "messages")
    if value["role"] not in ("system", "user", "assistant"):
        raise UserError(f"field 'messages' holds the unknown role {value['role']!r}")
    return {"role": value["role"], "content": value["content"]}


def _response(value: Any) -> OfflineResponse:
    _check_fields(value, {"text": str, "status": str, "reward": (int, float), "origin": str}, "responses")
    try:
        status = Status(value["status"])
    except ValueError:
        raise UserError(f"field 'responses' holds the unknown status {value['status']!r}") from None
    return OfflineResponse(value["text"], status, float(value["reward"]), value["origin"])


def _check_fields(value: Any, kinds: Mapping[str, Any], within: str | None = None) -> None:
    """Raise if a value is not an object of exactly these fields and types."""
    place = f"field {within!r}: " if within else ""
    if not isinstance(value, Mapping):
        raise UserError(f"{place}an entry is not an object")
    for name in value:
        if name not in kinds:
            raise UserError(f"{place}field {name!r} is unknown")
    for name, kind in kinds.items():
        if name not in value:
            raise UserError(f"{place}field {name!r} is missing")
        if not isinstance(value[name], kind) or isinstance(value[name], bool):
            raise UserError(f"{place}field {name!r} has a value of the wrong type")
