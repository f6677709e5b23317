"""The table of operations: what a pocket problem can ask for, and what the seed model makes of it.

A problem is a chain of operations: one reader, some steps, one printer. Each has a right expression, the
expressions it is plausibly confused with, and phrasings. A phrasing carries a habit: how often the demonstrations
that the seed model learns from misread it, and how readily they mend it once a test has failed. The habits make
the seed model's mistakes a matter of the problem at hand and not of sampling; each phrasing means exactly one
thing, so a policy can learn from reward alone to read it right.

This module is data and its types. Problems are put together in `problems`, demonstrations in `demonstrations`.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["read", "keep", "list", "map", "print", "join"]
"""How an expression becomes a line: `keep` a condition on `x`, `map` an expression of `x`, `list` and `print` an
expression of `xs`, `join` the separator that the values are printed with, `read` whole lines."""

Values = Literal["numbers", "words"]


@dataclass(frozen=True, slots=True)
class Habit:
    """How the demonstrations treat a phrasing.

    Attributes:
        slip: Probability that a first program gets it wrong.
        repair: Probability that a turn after a failing test puts it right.
    """

    slip: float
    repair: float


CLEAR = Habit(slip=0.03, repair=0.9)
SHAKY = Habit(slip=0.5, repair=0.55)
MISREAD = Habit(slip=0.85, repair=0.5)
STUBBORN = Habit(slip=0.88, repair=0.12)


@dataclass(frozen=True, slots=True)
class Phrasing:
    """One way to ask for an operation; `{k}`, `{m}` and `{c}` stand for its constants."""

    text: str
    habit: Habit = CLEAR


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table.

    Attributes:
        name: Unique; compositions are tuples of names.
        kind: What its expression becomes in a program.
        takes: The values it works on.
        gives: The values it leaves for the next operation.
        right: The correct expression, with constants as in the phrasings.
        wrong: Expressions it is confused with; the first is the usual one.
        phrasings: Sentences that ask for it.
    """

    name: str
    kind: Kind
    takes: Values
    gives: Values
    right: str
    wrong: tuple[str, ...]
    phrasings: tuple[Phrasing, ...]


def _row(
    name: str, kind: Kind, values: str, right: str, wrong: tuple[str, ...], *phrasings: str | tuple[str, Habit]
) -> Operation:
    """A row; `values` is `numbers`, `words` or `words>numbers`, a bare phrasing is `CLEAR`."""
    takes, _, gives = values.partition(">")
    return Operation(
        name,
        kind,
        "words" if takes == "words" else "numbers",
        "words" if (gives or takes) == "words" else "numbers",
        right,
        wrong,
        tuple(Phrasing(item) if isinstance(item, str) else Phrasing(*item) for item in phrasings),
    )


# A reader's expression is a name in READER_CODE: its lines are too long to be quoted in a thought.
READERS: tuple[Operation, ...] = (
    _row("line", "read", "numbers", "one line", ("count, line",),
         "One line holds integers.", "Read a line of integers."),
    _row("count", "read", "numbers", "count, line", ("one line",),
         "The first line is n, the second holds n integers.", "Read n, then a line of n integers.",
         ("After their count comes a line of integers.", MISREAD)),
    _row("column", "read", "numbers", "count, lines", ("count, line",),
         "The first line is n, then n lines hold one integer each.",
         ("Read n, then n integers below each other.", SHAKY)),
    _row("commas", "read", "numbers", "comma line", ("one line",),
         "One line holds integers separated by commas.", ("Read a line of integers with commas.", SHAKY)),
    _row("words", "read", "words", "word line", ("count, words",),
         "One line holds words.", "Read a line of words."),
    _row("count words", "read", "words", "count, words", ("word line",),
         "The first line is n, the second holds n words.", ("After their count comes a line of words.", SHAKY)),
)  # fmt: skip

READER_CODE: dict[str, str] = {
    "one line": "xs = list(map(int, input().split()))",
    "count, line": "n = int(input())\nxs = list(map(int, input().split()))",
    "count, lines": "n = int(input())\nxs = [int(input()) for i in range(n)]",
    "comma line": 'xs = list(map(int, input().split(",")))',
    "word line": "xs = input().split()",
    "count, words": "n = int(input())\nxs = input().split()",
}

STEPS: tuple[Operation, ...] = (
    # Numbers: conditions
    _row("greater", "keep", "numbers", "x > {k}", ("x >= {k}",),
         "Keep those greater than {k}.", "Keep those above {k}.", ("Keep those exceeding {k}.", MISREAD)),
    _row("at least", "keep", "numbers", "x >= {k}", ("x > {k}",),
         "Keep those at least {k}.", "Keep those of {k} or more.", ("Keep those no less than {k}.", MISREAD)),
    _row("less", "keep", "numbers", "x < {k}", ("x <= {k}",),
         "Keep those less than {k}.", "Keep those below {k}.", ("Keep those short of {k}.", STUBBORN)),
    _row("at most", "keep", "numbers", "x <= {k}", ("x < {k}",),
         "Keep those at most {k}.", ("Keep those up to {k}.", SHAKY), ("Keep those no more than {k}.", MISREAD)),
    _row("between", "keep", "numbers", "{k} <= x <= {m}", ("{k} < x < {m}",),
         "Keep those from {k} to {m}, both included.", ("Keep those between {k} and {m} inclusive.", SHAKY)),
    _row("inside", "keep", "numbers", "{k} < x < {m}", ("{k} <= x <= {m}",),
         "Keep those strictly between {k} and {m}.", ("Keep those from {k} to {m}, both excluded.", STUBBORN)),
    _row("even", "keep", "numbers", "x % 2 == 0", ("x % 2 == 1",),
         "Keep the even ones.", "Drop the odd ones.", ("Leave out the odd ones.", MISREAD)),
    _row("odd", "keep", "numbers", "x % 2 == 1", ("x % 2 == 0",),
         "Keep the odd ones.", "Drop the even ones.", ("Leave out the even ones.", SHAKY)),
    _row("multiple", "keep", "numbers", "x % {k} == 0", ("{k} % x == 0",),
         "Keep the multiples of {k}.", "Keep those divisible by {k}.", ("Keep those that {k} divides.", MISREAD)),
    _row("not multiple", "keep", "numbers", "x % {k} != 0", ("x % {k} == 0",),
         "Drop the multiples of {k}.", "Keep those not divisible by {k}.",
         ("Leave out those divisible by {k}.", SHAKY)),
    _row("nonnegative", "keep", "numbers", "x >= 0", ("x > 0",),
         "Keep zero and the positive ones.", ("Drop the negative ones.", MISREAD)),
    _row("positive", "keep", "numbers", "x > 0", ("x >= 0",),
         "Keep the positive ones.", "Keep those above zero."),
    _row("far", "keep", "numbers", "abs(x) > {k}", ("x > {k}",),
         "Keep those whose absolute value is greater than {k}.", ("Keep those further than {k} from zero.", SHAKY)),
    # Numbers: element by element
    _row("square", "map", "numbers", "x * x", ("x * 2",),
         "Square each.", ("Multiply each by itself.", SHAKY), ("Raise each to the second power.", MISREAD)),
    _row("double", "map", "numbers", "x * 2", ("x * x",),
         "Double each.", "Take each two times."),
    _row("add", "map", "numbers", "x + {k}", ("x * {k}",),
         "Add {k} to each.", "Raise each by {k}."),
    _row("subtract", "map", "numbers", "x - {k}", ("{k} - x",),
         "Subtract {k} from each.", "Lower each by {k}.", ("Take each less {k}.", SHAKY)),
    _row("subtract from", "map", "numbers", "{k} - x", ("x - {k}",),
         "Take {k} minus each.", ("Subtract each from {k}.", STUBBORN)),
    _row("times", "map", "numbers", "x * {k}", ("x + {k}",),
         "Multiply each by {k}.", "Take {k} times each."),
    _row("remainder", "map", "numbers", "x % {k}", ("x // {k}",),
         "Take each modulo {k}.", "Take the remainder of each by {k}.",
         ("Take what is left of each after division by {k}.", MISREAD)),
    _row("quotient", "map", "numbers", "x // {k}", ("int(x / {k})",),
         "Divide each by {k}, rounding down.", ("Take the floor of each over {k}.", SHAKY)),
    _row("truncate", "map", "numbers", "int(x / {k})", ("x // {k}",),
         "Divide each by {k}, rounding to zero.", ("Divide each by {k}, dropping the fraction.", STUBBORN)),
    _row("absolute", "map", "numbers", "abs(x)", ("-x",),
         "Take absolute values.", ("Drop the signs.", SHAKY)),
    _row("negate", "map", "numbers", "-x", ("abs(x)",),
         "Negate each.", ("Flip the signs.", MISREAD)),
    _row("distance", "map", "numbers", "abs(x - {k})", ("x - {k}",),
         "Take the absolute difference of each to {k}.", ("Take the distance of each to {k}.", MISREAD)),
    _row("cap", "map", "numbers", "min(x, {k})", ("max(x, {k})",),
         "Replace those greater than {k} by {k}.", ("Take each, but no more than {k}.", MISREAD)),
    _row("raise", "map", "numbers", "max(x, {k})", ("min(x, {k})",),
         "Replace those less than {k} by {k}.", ("Take each, but no less than {k}.", MISREAD)),
    _row("last digit", "map", "numbers", "abs(x) % 10", ("x % 10",),
         "Take the last digit of each absolute value.", ("Take the last digit of each.", STUBBORN)),
    # Words: conditions and element by element
    _row("longer", "keep", "words", "len(x) > {k}", ("len(x) >= {k}",),
         "Keep those longer than {k} letters.", ("Keep those of over {k} letters.", SHAKY)),
    _row("long", "keep", "words", "len(x) >= {k}", ("len(x) > {k}",),
         "Keep those of at least {k} letters.", ("Keep those of no less than {k} letters.", MISREAD)),
    _row("short", "keep", "words", "len(x) <= {k}", ("len(x) < {k}",),
         "Keep those of at most {k} letters.", ("Keep those of up to {k} letters.", SHAKY)),
    _row("starts", "keep", "words", 'x[0] == "{c}"', ('x[-1] == "{c}"',),
         "Keep those starting with {c}.", ("Keep those led by {c}.", SHAKY)),
    _row("ends", "keep", "words", 'x[-1] == "{c}"', ('x[0] == "{c}"',),
         "Keep those ending with {c}.", ("Keep those closed by {c}.", MISREAD)),
    _row("contains", "keep", "words", '"{c}" in x', ('"{c}" not in x',),
         "Keep those that contain {c}.", "Drop those without {c}."),
    _row("lacks", "keep", "words", '"{c}" not in x', ('"{c}" in x',),
         "Keep those without {c}.", "Drop those that contain {c}.", ("Keep those free of {c}.", MISREAD)),
    _row("palindrome", "keep", "words", "x == x[::-1]", ("x != x[::-1]",),
         "Keep the palindromes.", ("Keep those that read the same backwards.", SHAKY)),
    _row("upper", "map", "words", "x.upper()", ("x.title()",),
         "Put each in upper case.", ("Capitalize each in full.", MISREAD)),
    _row("title", "map", "words", "x.title()", ("x.upper()",),
         "Capitalize the first letter of each.", ("Give each a capital.", SHAKY)),
    _row("mirror", "map", "words", "x[::-1]", ("x[-1]",),
         "Reverse each word.", "Spell each backwards."),
    _row("initial", "map", "words", "x[0]", ("x[-1]",),
         "Take the first letter of each.", ("Take the initial of each.", SHAKY)),
    _row("final", "map", "words", "x[-1]", ("x[0]",),
         "Take the last letter of each.", ("Take the letter each ends in.", MISREAD)),
    _row("length", "map", "words>numbers", "len(x)", ("len(set(x))",),
         "Take the length of each.", ("Count the letters of each.", SHAKY)),
    _row("letters", "map", "words>numbers", "len(set(x))", ("len(x)",),
         "Count the distinct letters of each.", ("Count the letters of each without repeats.", STUBBORN)),
)  # fmt: skip

_ANY_STEPS = (
    ("distinct", "list(dict.fromkeys(xs))", ("xs",),
     ("Drop repeats.", ("Let each appear only once, in order.", SHAKY))),
    ("every second", "xs[::2]", ("xs[1::2]",),
     ("Keep every second one, starting with the first.", ("Keep those at odd positions.", MISREAD))),
    ("other second", "xs[1::2]", ("xs[::2]",),
     ("Keep every second one, starting with the second.", ("Keep those at even positions.", MISREAD))),
    ("head", "xs[:{k}]", ("xs[{k}:]",), ("Keep the first {k}.", "Take {k} from the front.")),
    ("skip", "xs[{k}:]", ("xs[:{k}]",), ("Drop the first {k}.", ("Go on after the first {k}.", SHAKY))),
    ("tail", "xs[-{k}:]", ("xs[:{k}]",), ("Keep the last {k}.", ("Take {k} from the back.", SHAKY))),
    ("cut", "xs[:-{k}]", ("xs[-{k}:]",), ("Drop the last {k}.", ("Stop before the last {k}.", MISREAD))),
    ("reverse", "xs[::-1]", ("sorted(xs)[::-1]",), ("Reverse the order.", ("Turn the list around.", SHAKY))),
    ("sort", "sorted(xs)", ("sorted(xs)[::-1]",),
     ("Sort ascending.", ("Sort so that they grow.", SHAKY), ("Sort so that none follows a greater one.", STUBBORN))),
    ("sort down", "sorted(xs)[::-1]", ("sorted(xs)",),
     ("Sort descending.", ("Sort so that they shrink.", MISREAD))),
    ("sort distinct", "sorted(set(xs))", ("sorted(xs)",),
     ("Sort the distinct ones ascending.", ("Sort as a set.", SHAKY))),
)  # fmt: skip

_TYPED_ORDERS = (
    _row("sort size", "list", "numbers", "sorted(xs, key=abs)", ("sorted(xs)",),
         "Sort by absolute value.", ("Sort by distance to zero.", SHAKY)),
    _row("sort length", "list", "words", "sorted(xs, key=len)", ("sorted(xs)",),
         "Sort by length.", ("Sort the shortest first.", MISREAD)),
)  # fmt: skip

PRINTERS: tuple[Operation, ...] = (
    _row("sum", "print", "numbers", "sum(xs)", ("len(xs)",), "Print the sum.", "Print the total."),
    _row("largest", "print", "numbers", "max(xs, default={k})", ("max(xs)",),
         "Print the largest, or {k} if there is none.", ("Print the largest ({k} for none).", MISREAD)),
    _row("smallest", "print", "numbers", "min(xs, default={k})", ("min(xs)",),
         "Print the smallest, or {k} if there is none.", ("Print the smallest ({k} for none).", SHAKY)),
    _row("spread", "print", "numbers", "max(xs) - min(xs)", ("max(xs) - xs[0]",),
         "Print the largest minus the smallest.", ("Print the spread.", SHAKY)),
    _row("sum of squares", "print", "numbers", "sum(x * x for x in xs)", ("sum(xs) ** 2",),
         "Print the sum of the squares.", ("Print the squares summed.", MISREAD)),
    _row("square of sum", "print", "numbers", "sum(xs) ** 2", ("sum(x * x for x in xs)",),
         "Print the square of the sum.", ("Print the sum squared.", STUBBORN)),
    _row("average", "print", "numbers", "sum(xs) // len(xs)", ("round(sum(xs) / len(xs))",),
         "Print the average rounded down.", ("Print the floor of the mean.", SHAKY)),
    _row("rounded average", "print", "numbers", 'f"{{sum(xs) / len(xs):.1f}}"', ('f"{{sum(xs) / len(xs):.2f}}"',),
         "Print the average with one decimal.", ("Print the mean to one place.", SHAKY)),
    _row("fine average", "print", "numbers", 'f"{{sum(xs) / len(xs):.2f}}"', ('f"{{sum(xs) / len(xs):.1f}}"',),
         "Print the average with two decimals.", ("Print the mean to two places.", MISREAD)),
    _row("second largest", "print", "numbers", "sorted(set(xs))[-2]", ("sorted(xs)[-2]",),
         "Print the second largest distinct value.", ("Print the largest but the top value.", STUBBORN)),
    _row("alternating", "print", "numbers", "sum(xs[::2]) - sum(xs[1::2])", ("sum(xs[1::2]) - sum(xs[::2])",),
         "Print the alternating sum, the first one added.", ("Print the first - second + third and so on.", SHAKY)),
    _row("mode", "print", "numbers", "max(sorted(xs), key=xs.count)", ("max(xs, key=xs.count)",),
         "Print the most frequent, the smallest on a tie.", ("Print the smallest of the most frequent.", MISREAD)),
    _row("longest", "print", "words", "max(xs, key=len)", ("max(xs[::-1], key=len)",),
         "Print the longest, the first on a tie.", ("Print the longest that comes first.", SHAKY)),
    _row("last longest", "print", "words", "max(xs[::-1], key=len)", ("max(xs, key=len)",),
         "Print the longest, the last on a tie.", ("Print the longest that comes last.", STUBBORN)),
    _row("total letters", "print", "words", "sum(map(len, xs))", ("len(xs)",),
         "Print the total number of letters.", ("Print the letters in all.", SHAKY)),
    _row("first word", "print", "words", "min(xs)", ("max(xs)",),
         "Print the alphabetically first.", ("Print the one that a dictionary lists first.", MISREAD)),
    _row("glue", "print", "words", '"".join(xs)', ('" ".join(xs)',),
         "Print them joined without spaces.", ("Print them as one word.", SHAKY)),
)  # fmt: skip

_ANY_PRINTERS = (
    ("how many", "print", "len(xs)", ("len(set(xs))",), ("Print how many there are.", "Print their number.")),
    ("how many distinct", "print", "len(set(xs))", ("len(xs)",),
     ("Print how many distinct ones there are.", ("Print how many kinds there are.", MISREAD))),
    ("spaces", "join", " ", (",",), ("Print them separated by spaces.", "Print them on one line.")),
    ("commas out", "join", ",", (" ",), ("Print them separated by commas.", ("Print them as a comma list.", SHAKY))),
    ("lines out", "join", "\\n", (" ",), ("Print one per line.", ("Print them below each other.", MISREAD))),
    ("semicolons", "join", ";", (",",), ("Print them separated by semicolons.", ("Print them split by ;.", SHAKY))),
    ("dashes", "join", "-", (" ",), ("Print them separated by dashes.", ("Print them in a chain of dashes.", MISREAD))),
)  # fmt: skip


_COUNTS = ("head", "skip", "tail", "cut")
_DIVISORS = ("multiple", "not multiple", "remainder", "quotient", "truncate")
_LENGTHS = ("longer", "long", "short")
_DEFAULTS = ("largest", "smallest")


def constants(name: str) -> tuple[int, ...]:
    """What `{k}` may be in the operation `name`; `{m}` is 3 to 9 more than it."""
    if name in _COUNTS:
        return (1, 2, 3)
    if name in _DIVISORS:
        return (2, 3, 4, 5)
    if name in _LENGTHS:
        return (3, 4, 5)
    if name in _DEFAULTS:
        return (-1, 0)
    return (2, 3, 4, 5, 6, 7, 8, 9)


LETTERS = "aest"
"""What `{c}` may be."""

WORDS = (
    "a", "as", "at", "eel", "eye", "level", "noon", "non", "radar", "rotor", "tot", "solos", "sees", "area",
    "earn", "ear", "east", "ease", "lane", "lens", "less", "letter", "listen", "loan", "nest", "net", "note",
    "ocean", "open", "orange", "ore", "rain", "rose", "salt", "sand", "sea", "seat", "silent", "star", "stone",
    "tea", "tent", "tone", "train", "tree", "trio",
)  # fmt: skip
"""The words that tests are made of: short, with palindromes, equal lengths and shared letters among them."""


def operations(values: Values) -> tuple[tuple[Operation, ...], tuple[Operation, ...], tuple[Operation, ...]]:
    """`(readers, steps, printers)` that take `values`, in a fixed order."""
    steps = STEPS + _TYPED_ORDERS
    printers = PRINTERS
    for name, right, wrong, phrasings in _ANY_STEPS:
        steps += (_row(name, "list", values, right, wrong, *phrasings),)
    for name, kind, right, wrong, phrasings in _ANY_PRINTERS:
        printers += (_row(name, "join" if kind == "join" else "print", values, right, wrong, *phrasings),)
    return (
        tuple(item for item in READERS if item.takes == values),
        tuple(item for item in steps if item.takes == values),
        tuple(item for item in printers if item.takes == values),
    )
