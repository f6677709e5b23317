"""What an agent loop of several turns records beside the tokens of a row, and how trainers and estimators read it.

veRL hands an advantage estimator the rewards, the mask and the prompt of each row, but neither trajectories (a session
of several rows) nor turns nor the outcomes of single tests. The agent loop leaves these in the rows' `extra_fields`.
The trainer reads them (`batch_rows`) and shows them to the estimator for the length of veRL's computation (`BATCH`),
with the metrics of the step (`METRICS`).
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

FIELD = "episode"
"""The key in `extra_fields`."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn of a row.

    Attributes:
        start: First token of the response, as a place in the row's responses.
        stop: The token after its last one.
        passed: Whether the program passes each test of the problem; None if it was judged on public tests alone.
            Without a program every test fails.
    """

    start: int
    stop: int
    passed: tuple[bool, ...] | None


@dataclass(frozen=True, slots=True)
class RowRecord:
    """What is recorded of a row.

    Attributes:
        turns: Its turns, at least one.
        solved: Whether the trajectory solved the problem; the same for all rows of a trajectory.
    """

    turns: tuple[TurnRecord, ...]
    solved: bool

    def to_field(self) -> dict[str, Any]:
        """The record as plain values."""
        return {
            "turns": [
                {"start": turn.start, "stop": turn.stop, "passed": None if turn.passed is None else list(turn.passed)}
                for turn in self.turns
            ],
            "solved": self.solved,
        }

    @classmethod
    def from_field(cls, value: Mapping[str, Any]) -> "RowRecord":
        """Read what `to_field` wrote."""
        turns = (
            TurnRecord(turn["start"], turn["stop"], None if turn["passed"] is None else tuple(turn["passed"]))
            for turn in value["turns"]
        )
        return cls(tuple(turns), value["solved"])


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of a batch: the trajectory that it is of, its place there, and its record."""

    session: str
    place: int
    record: RowRecord


BATCH: ContextVar[Sequence[BatchRow | None]] = ContextVar("BATCH")
"""The rows of the batch whose advantages are computed, in its order; None for a row of padding."""


METRICS: ContextVar[dict[str, Any]] = ContextVar("METRICS")
"""The metrics of the step whose advantages are computed; an estimator may add its own."""


def prompt_of(key: str) -> str:
    """The prompt that a row's key of veRL names."""
    return key.rsplit("_", 2)[0]


def session_of(key: str) -> tuple[str, int]:
    """The trajectory and the place in it that a row's key of veRL names (`{uid}_{session}_{index}`)."""
    session, _, place = key.rpartition("_")
    return session, int(place)


def last_keys(keys: Sequence[str]) -> list[str]:
    """The keys of the last row of each trajectory, in their order."""
    last: dict[str, int] = {}
    for session, place in map(session_of, keys):
        last[session] = max(place, last.get(session, 0))
    return [key for key in keys if last[session_of(key)[0]] == session_of(key)[1]]


def batch_rows(
    keys: Sequence[str], tags: Sequence[Mapping[str, Any]], extra_fields: Sequence[Mapping[str, Any]]
) -> list[BatchRow | None]:
    """The rows of a batch as veRL's queue has them; see `BATCH`.

    Args:
        keys: Of the batch.
        tags: Of the batch; `is_padding` marks what veRL added.
        extra_fields: Of the batch.
    """
    return [
        None if tag.get("is_padding") else BatchRow(*session_of(key), RowRecord.from_field(extra[FIELD]))
        for key, tag, extra in zip(keys, tags, extra_fields, strict=True)
    ]
