"""The table of operations: what a pocket problem can ask for, and what the seed model makes of it.

A problem is a chain of operations: one reader, some steps, one printer. A phrasing carries a habit: how often the
demonstrations misread it, and how readily they correct it once a test has failed. So the seed model's mistakes depend
on the problem at hand. Each phrasing means exactly one thing. The table is as long as a model of a few million
parameters can learn in a few minutes: with three times the rows it cannot repair its programs.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["read", "keep", "list", "map", "print", "join"]
"""Kind of line that an expression makes: `keep` a condition on `x`, `map` an expression of `x`, `list` and `print` an
expression of `xs`, `join` the separator that the values are printed with, `read` whole lines."""


@dataclass(frozen=True, slots=True)
class Habit:
    """Probabilities that a first program gets a phrasing wrong, and that a turn after a failing test puts it right."""

    slip: float
    repair: float


CLEAR = Habit(slip=0.03, repair=0.9)
SHAKY = Habit(slip=0.5, repair=0.6)
MISREAD = Habit(slip=0.85, repair=0.15)
STUBBORN = Habit(slip=0.9, repair=0.03)


@dataclass(frozen=True, slots=True)
class Phrasing:
    """One way to ask for an operation; `{k}` stands for its constant."""

    text: str
    habit: Habit = CLEAR


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table; names are unique, and expressions have the constant `{k}` as the phrasings do.

    `wrong` is the expression that the right one is confused with.
    """

    name: str
    kind: Kind
    right: str
    wrong: str
    phrasings: tuple[Phrasing, ...]
    constants: tuple[int, ...]


def _row(
    name: str,
    kind: Kind,
    right: str,
    wrong: str,
    *phrasings: str | tuple[str, Habit],
    constants: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9),
) -> Operation:
    """A row; a bare phrasing is `CLEAR`."""
    texts = (Phrasing(item) if isinstance(item, str) else Phrasing(*item) for item in phrasings)
    return Operation(name, kind, right, wrong, tuple(texts), constants)


_FEW = (1, 2, 3)
_DIVISORS = (2, 3, 4, 5)

# A reader's expression is a name in READER_CODE: its lines are too long to be quoted in a thought.
READERS: tuple[Operation, ...] = (
    _row("line", "read", "one line", "count, line",
         "One line holds integers.", "Read a line of integers."),
    _row("count", "read", "count, line", "one line",
         "The first line is n, the second holds n integers.", "Read n, then a line of n integers.",
         ("After their count comes a line of integers.", MISREAD)),
    _row("commas", "read", "comma line", "one line",
         "One line holds integers separated by commas.", ("Read a line of integers with commas.", SHAKY)),
)  # fmt: skip

READER_CODE: dict[str, str] = {
    "one line": "xs = list(map(int, input().split()))",
    "count, line": "n = int(input())\nxs = list(map(int, input().split()))",
    "comma line": 'xs = list(map(int, input().split(",")))',
}

STEPS: tuple[Operation, ...] = (
    _row("greater", "keep", "x > {k}", "x >= {k}",
         "Keep those greater than {k}.", "Keep those above {k}.", ("Keep those exceeding {k}.", MISREAD)),
    _row("at least", "keep", "x >= {k}", "x > {k}",
         "Keep those at least {k}.", "Keep those of {k} or more.", ("Keep those no less than {k}.", MISREAD)),
    _row("less", "keep", "x < {k}", "x <= {k}",
         "Keep those less than {k}.", "Keep those below {k}.", ("Keep those short of {k}.", STUBBORN)),
    _row("at most", "keep", "x <= {k}", "x < {k}",
         "Keep those at most {k}.", ("Keep those up to {k}.", SHAKY), ("Keep those no more than {k}.", MISREAD)),
    _row("even", "keep", "x % 2 == 0", "x % 2 == 1",
         "Keep the even ones.", "Drop the odd ones.", ("Leave out the odd ones.", MISREAD)),
    _row("odd", "keep", "x % 2 == 1", "x % 2 == 0",
         "Keep the odd ones.", "Drop the even ones.", ("Leave out the even ones.", SHAKY)),
    _row("multiple", "keep", "x % {k} == 0", "{k} % x == 0",
         "Keep the multiples of {k}.", "Keep those divisible by {k}.", ("Keep those that {k} divides.", MISREAD),
         constants=_DIVISORS),
    _row("square", "map", "x * x", "x * 2",
         "Square each.", ("Multiply each by itself.", SHAKY), ("Raise each to the second power.", MISREAD)),
    _row("double", "map", "x * 2", "x * x",
         "Double each.", "Take each two times."),
    _row("add", "map", "x + {k}", "x * {k}",
         "Add {k} to each.", "Raise each by {k}."),
    _row("subtract", "map", "x - {k}", "{k} - x",
         "Subtract {k} from each.", "Lower each by {k}.", ("Take each less {k}.", SHAKY)),
    _row("remainder", "map", "x % {k}", "x // {k}",
         "Take each modulo {k}.", "Take the remainder of each by {k}.",
         ("Take what is left of each after division by {k}.", MISREAD), constants=_DIVISORS),
    _row("absolute", "map", "abs(x)", "-x",
         "Take absolute values.", ("Drop the signs.", SHAKY)),
    _row("negate", "map", "-x", "abs(x)",
         "Negate each.", ("Flip the signs.", MISREAD)),
    _row("distinct", "list", "list(dict.fromkeys(xs))", "xs",
         "Drop repeats.", ("Let each appear only once, in order.", SHAKY)),
    _row("every second", "list", "xs[::2]", "xs[1::2]",
         "Keep every second one, starting with the first.", ("Keep those at odd positions.", MISREAD)),
    _row("sort", "list", "sorted(xs)", "sorted(xs)[::-1]",
         "Sort ascending.", ("Sort so that they grow.", SHAKY),
         ("Sort so that none follows a greater one.", STUBBORN)),
    _row("sort down", "list", "sorted(xs)[::-1]", "sorted(xs)",
         "Sort descending.", ("Sort so that they shrink.", MISREAD)),
    _row("head", "list", "xs[:{k}]", "xs[{k}:]",
         "Keep the first {k}.", "Take {k} from the front.", constants=_FEW),
    _row("tail", "list", "xs[-{k}:]", "xs[:{k}]",
         "Keep the last {k}.", ("Take {k} from the back.", SHAKY), constants=_FEW),
)  # fmt: skip

PRINTERS: tuple[Operation, ...] = (
    _row("sum", "print", "sum(xs)", "len(xs)", "Print the sum.", "Print the total."),
    _row("largest", "print", "max(xs, default={k})", "max(xs)",
         "Print the largest, or {k} if there is none.", ("Print the largest ({k} for none).", MISREAD),
         constants=(-1, 0)),
    _row("spread", "print", "max(xs) - min(xs)", "max(xs) - xs[0]",
         "Print the largest minus the smallest.", ("Print the spread.", SHAKY)),
    _row("sum of squares", "print", "sum(x * x for x in xs)", "sum(xs) ** 2",
         "Print the sum of the squares.", ("Print the squares summed.", MISREAD)),
    _row("square of sum", "print", "sum(xs) ** 2", "sum(x * x for x in xs)",
         "Print the square of the sum.", ("Print the sum squared.", STUBBORN)),
    _row("how many", "print", "len(xs)", "len(set(xs))",
         "Print how many there are.", "Print their number."),
    _row("how many distinct", "print", "len(set(xs))", "len(xs)",
         "Print how many distinct ones there are.", ("Print how many kinds there are.", MISREAD)),
    _row("spaces", "join", " ", ",", "Print them separated by spaces.", "Print them on one line."),
    _row("commas out", "join", ",", " ",
         "Print them separated by commas.", ("Print them as a comma list.", SHAKY)),
    _row("lines out", "join", "\\n", " ",
         "Print one per line.", ("Print them below each other.", MISREAD)),
)  # fmt: skip
