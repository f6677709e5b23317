"""Open sentences: those that ask for one of two operations and leave to the tests which.

An open sentence means its operation's right expression or the usual confusion, by a coin for each problem: these are
its two readings. No reader of statements can know which one is meant; a public test that the wrong reading fails tells.
This module is data; `problems` draws the sentences and tosses the coins.
"""

from cobalt.pocket.operations import Habit

OPEN_SHARE = 0.5
"""Default probability that an operation is asked for by its open sentence, where it has one (docs/pocket.md)."""

OPEN = Habit(slip=0.5, repair=0.0)
"""Demonstrations read an open sentence by a coin of their own, and never repair it knowingly: see `FLIP`."""

FLIP = 0.5
"""Probability that a demonstration answers a failing test with the other reading of an open sentence, drawn blindly:
the seed model learns that one may try the other reading, not when to try which."""

OPEN_SENTENCES: dict[str, tuple[str, ...]] = {
    "Let {k} be the lower bound.": ("greater", "at least"),
    "Keep one kind, even or odd.": ("even", "odd"),
    "Take the difference between each and {k}.": ("subtract",),
    "Keep every second one.": ("every second",),
    "Sort.": ("sort", "sort down"),
    "Cut at {k}.": ("head",),
    "Keep {k} of them.": ("tail",),
    "Print the squared sum.": ("sum of squares", "square of sum"),
    "Print the count.": ("how many", "how many distinct"),
    "Print them.": ("spaces", "commas out"),
    "Print them one by one.": ("lines out",),
}
"""The operations that each open sentence may ask for; `{k}` stands for their constant."""

OPEN_SENTENCE_OF: dict[str, str] = {
    operation: sentence for sentence, operations in OPEN_SENTENCES.items() for operation in operations
}

FAMILIES: tuple[tuple[str, ...], ...] = (
    ("greater", "at least"),
    ("even", "odd"),
    ("sort", "sort down"),
    ("head", "tail"),
    ("sum of squares", "square of sum"),
    ("how many", "how many distinct"),
    ("spaces", "commas out", "lines out"),
)
"""Steps and printers that a reading turns into one another. In a world with open sentences a family counts as one
operation where compositions are divided among the splits, so that the split does not tell which reading is meant."""

FAMILY_OF: dict[str, str] = {operation: " or ".join(family) for family in FAMILIES for operation in family}
