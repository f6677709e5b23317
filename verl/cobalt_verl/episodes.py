"""Records that an agent loop of several turns adds to the tokens of a row, and how trainers and estimators read them.

veRL hands an advantage estimator the rewards, the mask and the prompt of each row, but neither trajectories (a session
of several rows) nor turns nor the outcomes of single tests. The agent loop leaves these in the rows' `extra_fields`.
The trainer reads them (`batch_rows`) and shows them to the estimator for the length of veRL's computation (`BATCH`),
with the metrics of the step (`METRICS`).
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypedDict

FIELD = "episode"
"""The key in `extra_fields`."""


class TurnRecord(TypedDict):
    """One turn of a row, whose response is `[start:stop]` of the row's responses."""

    start: int
    stop: int
    passed: list[bool] | None
    """Whether the program passes each test of the problem (none without a program); None: judged on public tests."""


class RowRecord(TypedDict):
    """Record of a row: at least one turn, and whether the trajectory solved the problem."""

    turns: list[TurnRecord]
    solved: bool


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of a batch: the trajectory that it is of, its index there, and its record."""

    session: str
    index: int
    record: RowRecord


BATCH: ContextVar[Sequence[BatchRow | None]] = ContextVar("BATCH")
"""The rows of the batch whose advantages are computed, in its order; None for a row of padding."""


METRICS: ContextVar[dict[str, Any]] = ContextVar("METRICS")
"""The metrics of the step whose advantages are computed; an estimator may add its own."""


def prompt_of(key: str) -> str:
    """The prompt that a row's key of veRL names."""
    return key.rsplit("_", 2)[0]


def session_of(key: str) -> tuple[str, int]:
    """The trajectory and the index in it that a row's key of veRL names (`{uid}_{session}_{index}`)."""
    session, _, index = key.rpartition("_")
    return session, int(index)


def last_keys(keys: Sequence[str]) -> list[str]:
    """The keys of the last row of each trajectory, in their order."""
    last: dict[str, int] = {}
    for session, index in map(session_of, keys):
        last[session] = max(index, last.get(session, 0))
    return [key for key in keys if last[session_of(key)[0]] == session_of(key)[1]]


def batch_rows(
    keys: Sequence[str], tags: Sequence[Mapping[str, Any]], extra_fields: Sequence[Mapping[str, Any]]
) -> list[BatchRow | None]:
    """The rows of a batch (see `BATCH`) from its keys, tags and `extra_fields` in veRL's queue."""
    return [
        None if tag.get("is_padding") else BatchRow(*session_of(key), extra[FIELD])
        for key, tag, extra in zip(keys, tags, extra_fields, strict=True)
    ]
