"""Outcomes of the rows that a data command reads: how many rows had each, and which rows were left out first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cobalt.stage.errors import UserError

Summary = dict[str, dict[str, Any]]
"""Groups of counts by name, and under `FIRST` the first rows of each reason to leave rows out."""

FIRST = "first left out"
MALFORMED = "malformed"
REPEATED = "an id that an earlier row has"

_IDS = 5
_LONGEST = 500


class Tally(Counter[str]):
    """Counts by outcome.

    Attributes:
        first: For each reason to leave something out, the first few ids.
    """

    def __init__(self) -> None:
        """Start without a count."""
        super().__init__()
        self.first: dict[str, list[str]] = {}

    def leave_out(self, reason: str, identifier: object, number: int = 1) -> None:
        """Count what is left out for a reason: `number` items of the row or problem with this id."""
        self[reason] += number
        if not number:
            return
        ids = self.first.setdefault(reason, [])
        if str(identifier) not in ids and len(ids) < _IDS:
            ids.append(str(identifier))

    def malformed(self, position: str, error: UserError, identifier: object = None) -> None:
        """Count a row that cannot be read; the summary names its id, where it stands, and what is wrong with it."""
        named = "" if identifier is None else f"{identifier!s:.50}, "
        self.leave_out(MALFORMED, f"{named}{position}: {error}"[:_LONGEST])


def with_first(summary: Summary, *tallies: Tally) -> Summary:
    """The summary with the first ids of everything that the tallies left out; unchanged if they left out nothing."""
    first = {reason: ids for tally in tallies for reason, ids in tally.first.items()}
    return {**summary, FIRST: first} if first else summary


def first_malformed(first: Mapping[str, Sequence[str]]) -> str:
    """The end of a message that no row is left: what is wrong with the first row that cannot be read."""
    return f"; the first: {first[MALFORMED][0]}" if MALFORMED in first else ""
