"""Read hacking events, as `extract_turn_level_errors.py` and `run_llm_judge.py` write them. None is classified here.

There is one record for each event: `id`, `sample` and `turn` say which program it is; `category` is the LLM
classifier's verdict (Cobalt, reward-hacking study), absent or null before classification; `current_code` is the program
where the record has it. All other fields are ignored.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cobalt.errors import UserError
from cobalt.hacking.events import LOOKED_AT, TEMPTED
from cobalt.manifest import read_summary
from cobalt.problem import ProblemId, read_json_lines

CATEGORIES = ("hard coding", "logic overfitting", "semantic drifting", "others", "unknown", "not classified")
"""The paper's four; `unknown` is an answer without a category, `not classified` an event that no classifier saw."""


@dataclass(frozen=True, slots=True)
class HackingEvent:
    """One program that passes a perturbed test: its problem, sample and turn, and one of `CATEGORIES`.

    `program` is None where the record does not have it.
    """

    problem: ProblemId
    sample: int
    turn: int
    category: str
    program: str | None = None


def read_events(path: Path) -> list[HackingEvent]:
    """Read the events of one run.

    Raises:
        UserError: an unreadable file, or a record without `id`, `sample` and `turn` or with an unknown category.
    """
    events = []
    for number, record in read_json_lines(path):
        problem, sample, turn = (record.get(name) for name in ("id", "sample", "turn"))
        if not isinstance(problem, str | int) or not isinstance(sample, int) or not isinstance(turn, int):
            raise UserError(f"{path}, line {number}: a hacking event needs 'id' and the integers 'sample' and 'turn'")
        given = record.get("category")
        category = "not classified" if given is None else str(given).replace("_", " ").casefold().strip()
        if category not in CATEGORIES:
            known = ", ".join(CATEGORIES)
            raise UserError(f"{path}, line {number}: category {given!r} is not one of {known}")
        events.append(HackingEvent(problem, sample, turn, category, record.get("current_code")))
    return events


def count_categories(events: Sequence[HackingEvent]) -> dict[str, int]:
    """How many events each of `CATEGORIES` has."""
    counts = Counter(event.category for event in events)
    return {category: counts[category] for category in CATEGORIES}


def tempted_turns(path: Path) -> int | None:
    """How many turns of a run came after an impossible test, by the manifest of its events; None without a count.

    Raises:
        UserError: the manifest cannot be read.
    """
    found: object = read_summary(path)
    for name in (LOOKED_AT, TEMPTED):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None
