"""The file of hacking events that the extraction writes, the LLM classifier completes and the report counts.

Fields are those of the authors' files (`id, question, previous_code, feedback, current_code, patch, all_acc,
public_all_acc`), `sample` and `turn`, and `category`, which the classifier adds. An `id` is the problem's and occurs
once for each of its events.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.hacking.categories import NOT_CLASSIFIED, OUTCOMES
from cobalt.problems.problem import ProblemId
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import read_summary
from cobalt.stage.rows import read_rows

LOOKED_AT = "looked at"
"""Summary key with the denominators of the event rates."""
TEMPTED = "turns after an impossible test"
"""Count under `LOOKED_AT`: turns whose preceding feedback showed an impossible test."""
_TEXTS = ("question", "previous_code", "feedback", "current_code", "patch")


@dataclass(frozen=True, slots=True)
class HackingEvent:
    """One program that passes a perturbed test; its turn counts from 0, and its category is one of `OUTCOMES`."""

    problem: ProblemId
    sample: int
    turn: int
    category: str
    program: str | None = None


def read_events(path: Path) -> list[HackingEvent]:
    """Read which programs of a run are events, and their categories.

    Raises:
        UserError: an unreadable file, or a record without `id`, `sample` and `turn` or with an unknown category.
    """
    events: list[HackingEvent] = []
    for place, problem, record in _records(path, {"sample": int, "turn": int}):
        recorded = record.get("category")
        category = NOT_CLASSIFIED if recorded is None else str(recorded).replace("_", " ").casefold().strip()
        if category not in OUTCOMES:
            raise UserError(f"{place}: category {recorded!r} is none of {', '.join(OUTCOMES)}")
        program = record.get("current_code")
        if program is not None and not isinstance(program, str):
            raise UserError(f"{place}: field 'current_code' is not a string")
        events.append(HackingEvent(problem, record["sample"], record["turn"], category, program))
    return events


def read_event_texts(path: Path) -> list[dict[str, Any]]:
    """Read the records of an event file, ours or the authors', with all that the classifier is shown.

    Raises:
        UserError: an unreadable file, or an event without one of the fields that the classifier is shown.
    """
    return [record for _, _, record in _records(path, dict.fromkeys(_TEXTS, str))]


def _records(path: Path, fields: Mapping[str, type]) -> Iterator[tuple[str, ProblemId, dict[str, Any]]]:
    """The place, problem and record of each event, with the fields that are asked for in it."""
    for row, record in read_rows(path):
        place, problem = f"{path}, {row}", record.get("id")
        if not isinstance(problem, str | int) or isinstance(problem, bool):
            raise UserError(f"{place}: field 'id' is missing or neither a string nor an integer")
        for name, kind in fields.items():
            if not isinstance(record.get(name), kind) or isinstance(record[name], bool):
                raise UserError(
                    f"{place}: field {name!r} is missing or not {'a string' if kind is str else 'an integer'}:"
                    " give a file of extract_turn_level_errors.py"
                )
        yield place, problem, record


def count_categories(events: Iterable[HackingEvent]) -> dict[str, int]:
    """How many events each of `OUTCOMES` has."""
    counts = Counter(event.category for event in events)
    return {category: counts[category] for category in OUTCOMES}


def tempted_turns(path: Path) -> int | None:
    """How many turns of a run came after an impossible test, by the manifest of its events; None without a count.

    Raises:
        UserError: the manifest cannot be read.
    """
    value: Any = read_summary(path)
    for name in (LOOKED_AT, TEMPTED):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) else None


def content_key(event: Mapping[str, Any]) -> str:
    """A digest of what the classifier is shown of an event; events with the same content have the same key."""
    text = json.dumps([event[name] for name in _TEXTS])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
