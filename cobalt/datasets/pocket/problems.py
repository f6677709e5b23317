"""Problems as chains of operations: drawing them, stating them, writing programs for them.

A `Task` is a chain with its constants and phrasings; its tests are made in `cases`, its record in `dataset`.
A composition, the names of a chain's steps and printer, belongs to exactly one split, whatever the constants,
the phrasings and the reader, so that development and test problems combine operations as no training problem or
demonstration does. Everything is a function of the random generator that is passed in.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cobalt.datasets.pocket.operations import CLEAR, PRINTERS, READER_CODE, READERS, STEPS, Operation, Phrasing

Difficulty = Literal["EASY", "MEDIUM", "HARD"]
Split = Literal["train", "dev", "test"]

STEPS_OF: dict[Difficulty, int] = {"EASY": 1, "MEDIUM": 2, "HARD": 3}
"""How many operations lie between a problem's reader and its printer."""

LABELS = "ABCDE"
"""Statement, thoughts and programs label the operations alike, which shows a small model what belongs together."""

ODD_SHARE = 0.38
"""Probability of a phrasing that the demonstrations tend to misread, where an operation has one."""

_HELD_OUT_SHARE = 0.15
_NO_OPERATION = "xs"


@dataclass(frozen=True, slots=True)
class Slot:
    """One operation of a task, its constants filled in.

    Attributes:
        operation: The row of the table.
        phrasing: How the statement asks for it.
        sentence: The sentence itself.
        right: The correct expression.
        wrong: The expressions it may be confused with.
    """

    operation: Operation
    phrasing: Phrasing
    sentence: str
    right: str
    wrong: tuple[str, ...]

    def note(self, expression: str) -> str:
        """`expression` as a thought quotes it."""
        match self.operation.kind:
            case "keep" | "map" | "print":
                return f"{self.operation.kind} {expression}"
            case "join":
                return f'split "{expression}"'
            case _:
                return expression


@dataclass(frozen=True, slots=True)
class Task:
    """A reader, steps and a printer, ready to be stated and solved."""

    difficulty: Difficulty
    slots: tuple[Slot, ...]

    @property
    def composition(self) -> tuple[str, ...]:
        """The names of the steps and the printer, in order."""
        return tuple(slot.operation.name for slot in self.slots[1:])

    @property
    def statement(self) -> str:
        """The question that the model reads: one labelled sentence on each line."""
        return "\n".join(f"{label}: {slot.sentence}" for label, slot in zip(LABELS, self.slots, strict=False))

    @property
    def solution(self) -> tuple[str, ...]:
        """The right expression of every slot."""
        return tuple(slot.right for slot in self.slots)

    def program(self, expressions: Sequence[str | None]) -> str:
        """The program made of `expressions`, one for each slot, under labels; None leaves a step out."""
        lines = (
            f"# {label}\n{_line(slot, expression)}"
            for label, slot, expression in zip(LABELS, self.slots, expressions, strict=False)
            if expression is not None and expression != _NO_OPERATION
        )
        return "\n".join(lines)

    def confusions(self) -> list[tuple[str | None, ...]]:
        """The choices of expressions with exactly one mistake: a confusion, or a step left out."""
        found: list[tuple[str | None, ...]] = []
        for place, slot in enumerate(self.slots):
            changes: tuple[str | None, ...] = slot.wrong
            if slot.operation.kind in ("keep", "list", "map"):
                changes = (*changes, None)
            found.extend((*self.solution[:place], change, *self.solution[place + 1 :]) for change in changes)
        return found


def _line(slot: Slot, expression: str) -> str:
    match slot.operation.kind:
        case "read":
            return READER_CODE[expression]
        case "keep":
            return f"xs = [x for x in xs if {expression}]"
        case "map":
            return f"xs = [{expression} for x in xs]"
        case "list":
            return f"xs = {expression}"
        case "print":
            return f"print({expression})"
        case "join":
            return "print(*xs)" if expression == " " else f'print(*xs, sep="{expression}")'


def split_of(composition: tuple[str, ...], seed: int) -> Split:
    """The split that a composition belongs to in the world of `seed`."""
    digest = hashlib.sha256(f"{seed}:{'|'.join(composition)}".encode()).digest()
    place = int.from_bytes(digest[:4], "big") / 2**32
    if place < _HELD_OUT_SHARE:
        return "dev"
    return "test" if place < 2 * _HELD_OUT_SHARE else "train"


def draw_task(rng: random.Random, difficulty: Difficulty) -> Task:
    """Draw a chain; `cases` decides whether it makes a problem worth posing."""
    steps: list[Operation] = []
    while len(steps) < STEPS_OF[difficulty]:
        steps.append(rng.choice([step for step in STEPS if step not in steps]))
    chain = [rng.choice(READERS), *steps, rng.choice(PRINTERS)]
    return Task(difficulty, tuple(_slot(rng, operation) for operation in chain))


def _slot(rng: random.Random, operation: Operation) -> Slot:
    odd = [item for item in operation.phrasings if item.habit != CLEAR]
    plain = [item for item in operation.phrasings if item.habit == CLEAR]
    phrasing = rng.choice(odd if odd and rng.random() < ODD_SHARE else plain)
    k = rng.choice(operation.constants)
    return Slot(
        operation,
        phrasing,
        phrasing.text.format(k=k),
        operation.right.format(k=k),
        tuple(expression.format(k=k) for expression in operation.wrong),
    )
