"""Problems as chains of operations: drawing them, stating them, writing programs for them.

A composition, the names of a chain's steps and printer, belongs to exactly one split, whatever the constants, the
phrasings and the reader, so that development and test problems combine operations as no training problem or
demonstration does. Everything is a function of the random generator that is passed in.
"""

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cobalt.pocket.open_sentences import FAMILY_OF, OPEN, OPEN_SENTENCE_OF
from cobalt.pocket.operations import CLEAR, PRINTERS, READER_CODE, READERS, STEPS, Operation, Phrasing

Difficulty = Literal["EASY", "MEDIUM", "HARD"]
Split = Literal["train", "dev", "test"]

STEPS_OF: dict[Difficulty, int] = {"EASY": 1, "MEDIUM": 2, "HARD": 3}
"""Number of operations between a problem's reader and its printer."""

LABELS = "ABCDE"
"""Statement, thoughts and programs label the operations alike, which shows a small model what belongs together."""

ODD_SHARE = 0.38
"""Probability of a phrasing that the demonstrations tend to misread, where an operation has one."""

_HELD_OUT_SHARE = 0.15
_NO_OPERATION = "xs"
_LINES = {"keep": "xs = [x for x in xs if {}]", "map": "xs = [{} for x in xs]", "list": "xs = {}", "print": "print({})"}


@dataclass(frozen=True, slots=True)
class Slot:
    """One operation of a task, its constants filled in.

    Attributes:
        operation: The row of the table.
        name: Name in a composition: the operation's name, or its family's in a world with open sentences.
        phrasing: Phrasing by which the statement asks for it.
        sentence: The phrasing with its constant.
        right: The correct expression.
        wrong: The expression that it is confused with.
        readings: The expressions that the sentence may mean, sorted: `right`, if it is open also `wrong`.
    """

    operation: Operation
    name: str
    phrasing: Phrasing
    sentence: str
    right: str
    wrong: str
    readings: tuple[str, ...]

    @property
    def is_open(self) -> bool:
        """Whether the sentence leaves open which of two expressions is right."""
        return len(self.readings) > 1

    @property
    def is_step(self) -> bool:
        """Whether the operation lies between reader and printer, so that a program may leave it out."""
        return self.operation.kind in ("keep", "list", "map")

    def meaning(self, reading: str) -> "Slot":
        """The slot whose right expression is `reading`, one of `readings`."""
        return self if reading == self.right else replace(self, right=reading, wrong=self.right)

    def shown(self, expression: str | None) -> str | None:
        """The line of a program that `expression` makes; None where it leaves the step out."""
        if expression is None or expression == _NO_OPERATION:
            return None
        if self.operation.kind == "read":
            return READER_CODE[expression]
        if self.operation.kind == "join":
            return "print(*xs)" if expression == " " else f'print(*xs, sep="{expression}")'
        return _LINES[self.operation.kind].format(expression)

    def note(self, expression: str) -> str:
        """`expression` as a thought quotes it."""
        kind = self.operation.kind
        if kind == "join":
            return f'split "{expression}"'
        return expression if kind in ("read", "list") else f"{kind} {expression}"


@dataclass(frozen=True, slots=True)
class Task:
    """A reader, steps and a printer, ready to be stated and solved."""

    difficulty: Difficulty
    slots: tuple[Slot, ...]

    @property
    def composition(self) -> tuple[str, ...]:
        """The names of the steps and the printer, in order."""
        return tuple(slot.name for slot in self.slots[1:])

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
        shown = (slot.shown(expression) for slot, expression in zip(self.slots, expressions, strict=True))
        return "\n".join(f"# {label}\n{line}" for label, line in zip(LABELS, shown, strict=False) if line is not None)

    @property
    def open_slots(self) -> tuple[int, ...]:
        """The indices of the slots whose sentences are open."""
        return tuple(index for index, slot in enumerate(self.slots) if slot.is_open)

    @property
    def readings(self) -> list[tuple[str, ...]]:
        """The choices of expressions that the statement may mean, the solution among them; one without open slots."""
        return list(itertools.product(*(slot.readings for slot in self.slots)))

    def meaning(self, reading: Sequence[str]) -> "Task":
        """The task with the same statement whose solution is `reading`, one of `readings`."""
        slots = (slot.meaning(expression) for slot, expression in zip(self.slots, reading, strict=True))
        return replace(self, slots=tuple(slots))

    def confusions(self) -> list[tuple[str | None, ...]]:
        """The choices of expressions with exactly one mistake: a confusion, or a step left out."""
        return [
            (*self.solution[:index], change, *self.solution[index + 1 :])
            for index, slot in enumerate(self.slots)
            for change in ((slot.wrong, None) if slot.is_step else (slot.wrong,))
        ]


def split_of(composition: tuple[str, ...], seed: int) -> Split:
    """The split that a composition belongs to in the world of `seed`."""
    digest = hashlib.sha256(f"{seed}:{'|'.join(composition)}".encode()).digest()
    share = int.from_bytes(digest[:4], "big") / 2**32
    if share < _HELD_OUT_SHARE:
        return "dev"
    return "test" if share < 2 * _HELD_OUT_SHARE else "train"


def draw_task(rng: random.Random, difficulty: Difficulty, open_share: float = 0.0) -> Task:
    """Draw a chain, whether or not it makes a problem worth posing (`cases`).

    `open_share` is the probability that an operation is asked for by its open sentence, where it has one. Such a slot
    means its operation's right expression here; tossing the coin (`Task.meaning`) is for the caller to do.
    """
    steps: list[Operation] = []
    while len(steps) < STEPS_OF[difficulty]:
        steps.append(rng.choice([step for step in STEPS if step not in steps]))
    chain = [rng.choice(READERS), *steps, rng.choice(PRINTERS)]
    return Task(difficulty, tuple(_slot(rng, operation, open_share) for operation in chain))


def _slot(rng: random.Random, operation: Operation, open_share: float) -> Slot:
    # Nothing is drawn for open sentences in a world without them: its problems are those they always were.
    is_open = bool(open_share) and operation.name in OPEN_SENTENCE_OF and rng.random() < open_share
    phrasing = Phrasing(OPEN_SENTENCE_OF[operation.name], OPEN) if is_open else _clear_phrasing(rng, operation)
    k = rng.choice(operation.constants)
    right, wrong = operation.right.format(k=k), operation.wrong.format(k=k)
    return Slot(
        operation,
        FAMILY_OF.get(operation.name, operation.name) if open_share else operation.name,
        phrasing,
        phrasing.text.format(k=k),
        right,
        wrong,
        tuple(sorted((right, wrong))) if is_open else (right,),
    )


def _clear_phrasing(rng: random.Random, operation: Operation) -> Phrasing:
    """A phrasing that means one thing only, `ODD_SHARE` of the time one that demonstrations tend to misread."""
    odd = [item for item in operation.phrasings if item.habit != CLEAR]
    plain = [item for item in operation.phrasings if item.habit == CLEAR]
    return rng.choice(odd if odd and rng.random() < ODD_SHARE else plain)
