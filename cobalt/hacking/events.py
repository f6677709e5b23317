"""The file of hacking events that the extraction writes, the LLM classifier completes and the report counts.

Fields are those of the authors' files (`id, question, previous_code, feedback, current_code, patch, all_acc,
public_all_acc`), `sample` and `turn`, and `category`, which the classifier adds. An `id` is the problem's and occurs
once for each of its events.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, StrictInt, StrictStr

from cobalt.hacking.categories import NOT_CLASSIFIED, OUTCOMES
from cobalt.problems.problem import ProblemId
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import read_summary
from cobalt.stage.records import checked
from cobalt.stage.rows import read_rows

LOOKED_AT = "looked at"
"""Summary key with the denominators of the event rates."""
TEMPTED = "turns after an impossible test"
"""Count under `LOOKED_AT`: turns whose preceding feedback showed an impossible test."""

SECTIONS = {
    "PROBLEM": "question",
    "PROGRAM BEFORE": "previous_code",
    "FEEDBACK WITH THE WRONG EXPECTED OUTPUT": "feedback",
    "PROGRAM AFTER": "current_code",
    "CHANGED LINES": "patch",
}
"""Sections of an event that the classifier is shown: their names, and the fields of their texts."""


def _outcome(category: object) -> str:
    outcome = NOT_CLASSIFIED if category is None else str(category).replace("_", " ").casefold().strip()
    if outcome not in OUTCOMES:
        raise UserError(f"category {category!r} is none of {', '.join(OUTCOMES)}")
    return outcome


class HackingEvent(BaseModel, frozen=True):
    """One program that passes a perturbed test; its turn counts from 0, and its category is one of `OUTCOMES`."""

    problem: StrictStr | StrictInt = Field(alias="id")
    sample: StrictInt
    turn: StrictInt
    category: Annotated[str, BeforeValidator(_outcome)] = NOT_CLASSIFIED
    program: StrictStr | None = Field(None, alias="current_code")


def read_events(path: Path) -> list[HackingEvent]:
    """Read which programs of a run are events, and their categories; of one that occurs twice, the last record.

    Raises:
        UserError: an unreadable file, or a record without `id`, `sample` and `turn` or with an unknown category.
    """
    events: dict[tuple[ProblemId, int, int], HackingEvent] = {}
    for position, record in read_rows(path):
        with naming(f"{path}, {position}"):
            event = checked(HackingEvent, record)
        events[event.problem, event.sample, event.turn] = event
    return list(events.values())


def read_event_texts(path: Path) -> list[dict[str, Any]]:
    """Read the records of an event file, ours or the authors', with all that the classifier is shown.

    Raises:
        UserError: an unreadable file, or an event without one of the fields that the classifier is shown.
    """
    records, fields = [], {"id": str | int} | dict.fromkeys(SECTIONS.values(), str)
    for position, record in read_rows(path):
        missing = [field for field, kind in fields.items() if not isinstance(record.get(field), kind)]
        if missing:
            raise UserError(
                f"{path}, {position}, is not an event of extract_turn_level_errors.py: field {missing[0]!r}"
            )
        records.append(record)
    return records


def count_categories(events: Iterable[HackingEvent]) -> dict[str, int]:
    """Number of events in each of `OUTCOMES`."""
    counts = Counter(event.category for event in events)
    return {category: counts[category] for category in OUTCOMES}


def tempted_turns(path: Path) -> int | None:
    """Number of turns of a run that came after an impossible test, by the manifest of its events; None without a count.

    Raises:
        UserError: the manifest cannot be read.
    """
    count: int | None = (read_summary(path) or {}).get(LOOKED_AT, {}).get(TEMPTED)
    return count


def content_key(event: Mapping[str, Any]) -> str:
    """A digest of what the classifier is shown of an event; events with the same content have the same key."""
    text = json.dumps([event[field] for field in SECTIONS.values()])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
