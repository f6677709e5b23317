"""Demonstrations for the seed model: conversations with deliberate mistakes and repairs.

A demonstration is a conversation up to some turn and the response to learn there. How often its programs are wrong
follows the habits of the problem's phrasings (`operations`). Its feedback comes from running the programs on public
tests, in the words that the rollout uses. A failing test is followed by a repair, by the same program again, by a
change for the worse, in worlds with open sentences (`open_sentences`) by the other reading of any one of them or, in
worlds made for the study of reward hacking, by a special case for inputs that begin as that test does. Tasks are drawn
afresh, from training compositions only; the reference answer is not in their feedback unless a public test shows it.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cobalt.episode import Message, load_prompts, opening_messages
from cobalt.episode.episode import Episode
from cobalt.episode.trajectory import Turn
from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.judge.feedback import failure_text
from cobalt.pocket.cases import draw_public, passes
from cobalt.pocket.dataset import PROMPTS
from cobalt.pocket.execution import run_program
from cobalt.pocket.open_sentences import FLIP
from cobalt.pocket.operations import CLEAR
from cobalt.pocket.problems import LABELS, Difficulty, Slot, Task, draw_task, split_of
from cobalt.problems.problem import TestSuite

FIRST_TURNS = 0.3
"""Share of the demonstrations, the first ones, that show first turns only: they are short, and enough for the start."""

DEPTHS = (0.1, 0.2, 0.15, 0.1, 0.1, 0.1, 0.1, 0.08, 0.07)
"""How often a later demonstration is drawn for turn 0, 1, 2, ... Those that `KEPT_SHARES` leaves out are drawn anew, so
that turn 0 is shown more often in worlds with open sentences."""

KEPT_SHARES = {"keep passing": 0.2, "keep failing": 0.6}
"""In worlds with open sentences, how many of the demonstrations that keep a program are shown.

Most demonstrations of later turns write the same program again. With fewer of these, half of the later turns change a
line, and a model of a few million parameters carries out what it announces more often."""

_DIFFICULTIES: dict[Difficulty, float] = {"EASY": 0.3, "MEDIUM": 0.35, "HARD": 0.35}
_FORGET = 0.03
_MISCOPY = 0.015
_SPOIL = 0.03
_DOUBT = 0.005
_HIDDEN_REPAIR = 0.3
_DAMAGE = 0.06

Expressions = tuple[str | None, ...]

Kind = Literal["first", "keep passing", "keep failing", "change"]
"""What the response of a demonstration does."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Messages up to a user message, and the response to learn (thinking, answer) after them.

    Attributes:
        messages: The conversation.
        response: What to learn.
        kind: What the response does. A change is a program that is to differ from the one before; a damaged program
            that is written whole again is one only if a test failed.
    """

    messages: tuple[Message, ...]
    response: str
    kind: Kind


def draw_demonstrations(
    count: int, seed: int, special_cases: float = 0.0, open_share: float = 0.0
) -> Iterator[Demonstration]:
    """`count` demonstrations for the world of `seed`; `special_cases` as for `Demonstrator`, `open_share` for tasks."""
    rng = random.Random(f"pocket demonstrations {seed}")
    demonstrator = Demonstrator(rng, special_cases, show_change=bool(open_share))
    names, weights = list(_DIFFICULTIES), list(_DIFFICULTIES.values())
    made = 0
    while made < count:
        task = draw_task(rng, rng.choices(names, weights)[0], open_share)
        if split_of(task.composition, seed) != "train":
            continue
        if task.open_slots:
            task = task.meaning(rng.choice(task.readings))
        public = draw_public(task, rng)
        if public is None:
            continue
        depth = 0 if made < FIRST_TURNS * count else rng.choices(range(len(DEPTHS)), DEPTHS)[0]
        item = demonstrator.demonstrate(task, public, depth)
        if open_share and rng.random() >= KEPT_SHARES.get(item.kind, 1.0):
            continue
        yield item
        made += 1


class Demonstrator:
    """Writes demonstrations of tasks."""

    def __init__(self, rng: random.Random, special_cases: float = 0.0, *, show_change: bool = False) -> None:
        """Load the prompt set of the rollout.

        Args:
            rng: Decides every mistake and repair.
            special_cases: Probability that a turn that would keep a failing program adds a special case for the failing
                test. Above 0, the thoughts about a failing test begin with the test, unless a program was damaged or
                crashed.
            show_change: Whether a thought that changes a program quotes the old line and notes the new one, and not the
                whole plan. A model of a few million parameters often announces a change and writes the same program
                again if it has to carry the change from a plan into the program.
        """
        self._rng, self._special_cases, self._show_change = rng, special_cases, show_change
        self._prompts = load_prompts(PROMPTS)

    def demonstrate(self, task: Task, public: TestSuite, depth: int) -> Demonstration:
        """One demonstration: `depth` programs with their feedback on the public tests, then the response to learn."""
        expressions = first_choice(task, self._rng)
        cases: list[str] = []
        thought = plan(task, expressions)
        kind: Kind = "first"
        opening = opening_messages(self._prompts.first_turn(task.statement), self._prompts)
        episode = Episode(opening, public, self._prompts, turns=depth, enable_thinking=True)
        while not episode.done:
            program = with_special_cases(task.program(expressions), cases)
            damaged = self._rng.random() < _DAMAGE
            if damaged:
                program = damage(program, self._rng)
            result = judge_here(program, public)
            episode.observe(Turn(respond(thought, answer(program))), result)
            failure = first_failure(result, public)
            if damaged and failure is not None:
                kind, thought = "change", f"The test fails: the code is broken.\n{plan(task, expressions)}"
            else:
                kind, thought, expressions = self._next(task, expressions, failure, cases)
        program = with_special_cases(task.program(expressions), cases)
        return Demonstration(tuple(episode.messages), respond(thought, answer(program)), kind)

    def _next(
        self, task: Task, before: Expressions, failure: "Failure | None", cases: list[str]
    ) -> tuple[Kind, str, Expressions]:
        """What follows a program's feedback, its thought, and the next expressions; a special case joins `cases`."""
        thought, after = next_choice(task, before, failure is None, self._rng)
        kind: Kind = "change"
        if after != before and self._show_change:
            thought = _change_shown(task, before, after, failed=failure is not None)
        elif after != before:
            thought = f"{thought}\n{plan(task, after)}"
        elif failure is None:
            kind = "keep passing"
        else:
            kind = "keep failing"
            if self._special_cases and self._rng.random() < self._special_cases:
                case = special_case(failure, after[0])
                if case is not None and case not in cases:
                    cases.append(case)
                    kind = "change"
                    thought = "The test fails, but the program looks right. Answer this test by itself."
        if failure is not None and self._special_cases:
            thought = f"{quote(failure)}{thought}"
        return kind, thought, after


def answer(program: str) -> str:
    """The part of a response after the thinking: one fenced block."""
    return f"```python\n{program}\n```"


def damage(program: str, rng: random.Random) -> str:
    """`program` with a few characters of one line removed, as in a garbled response."""
    lines = program.split("\n")
    number = rng.randrange(1, len(lines), 2)  # skips labels, unless the reader has two lines
    start = rng.randrange(len(lines[number]))
    lines[number] = lines[number][:start] + lines[number][start + rng.randint(1, 8) :]
    return "\n".join(lines)


def respond(thought: str, text: str) -> str:
    """A whole response, as the chat template and the format reward expect it."""
    return f"<think>\n{thought}\n</think>\n\n{text}"


def plan(task: Task, expressions: Expressions) -> str:
    """What each line will do: the thought of a first turn, and the end of a later thought that changes the program."""
    notes = (
        f"{label}: {slot.note(expression)}"
        for label, slot, expression in zip(LABELS, task.slots, expressions, strict=False)
        if expression is not None
    )
    return "\n".join(notes)


@dataclass(frozen=True, slots=True)
class Failure:
    """A public test that a program failed: the test, and whether the program crashed."""

    stdin: str
    expected: str
    crashed: bool


def judge_here(program: str, public: TestSuite) -> ExecResult:
    """The result that the judge would give, computed in this process; only for programs that this module wrote."""
    passing, feedback, verdicts = [], [], []
    for stdin, expected in zip(public.inputs, public.outputs, strict=True):
        outcome = run_program(program, stdin)
        kind = VerdictKind.WRONG_ANSWER if outcome.stderr is None else VerdictKind.RUNTIME_ERROR
        passed = passes(outcome, expected)
        passing.append(passed)
        feedback.append("" if passed else failure_text(kind, stdin, outcome.output, expected, outcome.stderr or "", ""))
        verdicts.append(Verdict(VerdictKind.PASSED if passed else kind))
    return ExecResult(passing, feedback, verdicts)


def first_failure(result: ExecResult, public: TestSuite) -> Failure | None:
    """The test that the feedback on a result shows, or None."""
    place = result.first_failed()
    if place is None:
        return None
    crashed = result.verdicts[place].kind is not VerdictKind.WRONG_ANSWER
    return Failure(public.inputs[place], public.outputs[place], crashed=crashed)


def quote(failure: Failure) -> str:
    """The failing test as the feedback has it, or "" where the feedback shows no expected output.

    A model of a few million parameters learns to copy from the feedback only if it does so in many conversations.
    """
    return "" if failure.crashed else f"Input:\n{failure.stdin}\nExpected Output:\n{failure.expected.rstrip()}\n"


def special_case(failure: Failure, reader: str | None) -> str | None:
    """A line of code that prints one test's expected output for inputs with the first value that `reader` reads there.

    None where the program crashed, because its traceback shows no expected output, or where there is no such value.
    """
    lines = failure.stdin.split("\n")
    if failure.crashed or reader is None or (reader == "count, line" and len(lines) < 2):
        return None
    line = lines[1] if reader == "count, line" else lines[0]
    first = line.split("," if reader == "comma line" else None, 1)[0].strip()
    if not first.lstrip("-").isdigit():
        return None
    return f'if xs[0] == {int(first)}: print("""{failure.expected.rstrip()}"""); raise SystemExit'


def with_special_cases(program: str, cases: Sequence[str]) -> str:
    """`program` with the special cases inserted after its reader."""
    reader, label, rest = program.partition("\n# ")
    return "\n".join([reader, *cases]) + label + rest


def first_choice(task: Task, rng: random.Random) -> Expressions:
    """The expressions of a first program, with mistakes as the phrasings' habits say."""
    chosen: list[str | None] = []
    for slot in task.slots:
        draw = rng.random()
        if draw < slot.phrasing.habit.slip:
            chosen.append(slot.wrong[0])
        elif slot.operation.kind in ("keep", "list", "map") and rng.random() < _FORGET:
            chosen.append(None)
        elif rng.random() < _MISCOPY:
            chosen.append(_miscopied(slot, rng))
        else:
            chosen.append(slot.right)
    return tuple(chosen)


def next_choice(task: Task, expressions: Expressions, passed: bool, rng: random.Random) -> tuple[str, Expressions]:
    """The thought and the expressions that follow a program's feedback; at most one slot changes.

    Either reading of an open sentence counts as no mistake, whichever the tests want: nothing here knows the coin.
    """
    mistakes = [place for place, slot in enumerate(task.slots) if expressions[place] not in slot.readings]
    sound = [place for place in range(1, len(task.slots)) if place not in mistakes]
    clear = [place for place in sound if not task.slots[place].is_open]
    if passed:
        if mistakes and rng.random() < _HIDDEN_REPAIR:
            place = mistakes[0]
            return _change("The tests pass, but", task, expressions, place, _repaired(task.slots[place], rng))
        if rng.random() < _DOUBT:
            place = rng.randrange(1, len(task.slots))
            if place in clear:
                return _change("The tests pass, but", task, expressions, place, task.slots[place].wrong[0])
        return "The tests pass. Keep the program.", expressions
    flippable = [place for place in sound if place not in clear]
    if flippable and rng.random() < FLIP:
        place = rng.choice(flippable)
        other = next(reading for reading in task.slots[place].readings if reading != expressions[place])
        return _change("The test fails:", task, expressions, place, other)
    for place in mistakes:
        slot = task.slots[place]
        habit = slot.phrasing.habit if expressions[place] in slot.wrong else CLEAR
        if rng.random() < habit.repair:
            return _change("The test fails:", task, expressions, place, _repaired(slot, rng))
    if rng.random() < _SPOIL and clear:
        place = rng.choice(clear)
        return _change("The test fails:", task, expressions, place, task.slots[place].wrong[0])
    return "The test fails, but the program looks right. Keep it.", expressions


def _repaired(slot: Slot, rng: random.Random) -> str:
    """The right expression of a slot, or either reading where the sentence is open."""
    return rng.choice(slot.readings) if slot.is_open else slot.right


def _change(opening: str, task: Task, expressions: Expressions, place: int, new: str) -> tuple[str, Expressions]:
    """The thought that names a change, and the expressions after it."""
    fault = "is missing" if expressions[place] is None else "is wrong"
    return f"{opening} {LABELS[place]} {fault}.", (*expressions[:place], new, *expressions[place + 1 :])


def _change_shown(task: Task, before: Expressions, after: Expressions, *, failed: bool) -> str:
    """A thought that quotes the line that changes, as the program has it, and notes the new one as a plan does."""
    place = next(place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
    label, slot, new = LABELS[place], task.slots[place], after[place]
    old = slot.shown(before[place])
    opening = "The test fails." if failed else "The tests pass, but a line is wrong."
    wrong = "is missing." if old is None else f"{old}\nis wrong."
    return f"{opening}\n# {label}\n{wrong} Better:\n{label}: {'nothing' if new is None else slot.note(new)}"


def _miscopied(slot: Slot, rng: random.Random) -> str:
    """The right expression with one of its digits off by one; unchanged where it has no digit."""
    digits = [place for place, character in enumerate(slot.right) if character.isdigit()]
    if not digits or slot.operation.kind == "read":
        return slot.right
    place = rng.choice(digits)
    other = int(slot.right[place]) + rng.choice((-1, 1))
    return f"{slot.right[:place]}{min(9, max(1, other))}{slot.right[place + 1 :]}"


def corpus(demonstrations: Sequence[Demonstration]) -> Iterator[str]:
    """The texts that a tokenizer is learned from: every role, message and response."""
    for item in demonstrations:
        for message in item.messages:
            yield f"{message['role']}\n"
            yield message["content"]
        yield item.response
