"""Demonstrations for the seed model: conversations with deliberate mistakes and repairs (docs/pocket.md).

How often a program is wrong follows the habits of the problem's phrasings (`operations`). Feedback comes from running
the programs on public tests, in the words that the rollout uses. A failing test is followed by a repair, by the same
program again, by a change for the worse, by the other reading of an open sentence or, in worlds made for the study of
reward hacking, by a special case for that test. Tasks are drawn afresh, from training compositions only.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cobalt.episode import Message, PromptSet, load_prompts, opening_messages
from cobalt.episode.episode import Episode
from cobalt.episode.trajectory import Turn
from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.judge.feedback import failure_text
from cobalt.pocket.cases import draw_public, passes
from cobalt.pocket.dataset import PROMPTS
from cobalt.pocket.execution import run_program
from cobalt.pocket.open_sentences import FLIP
from cobalt.pocket.operations import CLEAR, READER_CODE
from cobalt.pocket.problems import LABELS, Difficulty, Slot, Task, draw_task, split_of
from cobalt.problems.problem import TestSuite

FIRST_TURNS = 0.3
"""Share of the demonstrations, the first ones, that show first turns only: they are short, and enough for the start."""

DEPTHS = (0.1, 0.2, 0.15, 0.1, 0.1, 0.1, 0.1, 0.08, 0.07)
"""Probability that a later demonstration is drawn for turn 0, 1, 2, ... Those that `DRAWN_SHARES` leaves out are drawn
anew, so that turn 0 is shown more often in worlds with open sentences."""

DRAWN_SHARES = {"keep passing": 0.2, "keep failing": 0.6}
"""In worlds with open sentences, how many of the demonstrations that keep a program are shown: half of the later turns
then change a line, and a model of a few million parameters carries out what it announces more often."""

_DIFFICULTIES: dict[Difficulty, float] = {"EASY": 0.3, "MEDIUM": 0.35, "HARD": 0.35}
_FORGET = 0.03
_MISCOPY = 0.015
_SPOIL = 0.03
_DOUBT = 0.005
_HIDDEN_REPAIR = 0.3
_DAMAGE = 0.06

Expressions = tuple[str | None, ...]

Kind = Literal["first", "keep passing", "keep failing", "change"]
"""Action that the response of a demonstration takes."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Messages up to a user message, the response to learn (thinking, answer) after them, and what that does."""

    messages: tuple[Message, ...]
    response: str
    kind: Kind


def draw_demonstrations(
    count: int, seed: int, special_cases: float = 0.0, open_share: float = 0.0
) -> Iterator[Demonstration]:
    """`count` demonstrations for the world of `seed`; `special_cases` as for `Demonstrator`, `open_share` for tasks."""
    rng = random.Random(f"pocket demonstrations {seed}")
    demonstrator = Demonstrator(rng, special_cases, bool(open_share), load_prompts(PROMPTS))
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
        if open_share and rng.random() >= DRAWN_SHARES.get(item.kind, 1.0):
            continue
        yield item
        made += 1


@dataclass(frozen=True, slots=True)
class Demonstrator:
    """Writes demonstrations of tasks, in the words of the rollout.

    Attributes:
        rng: Decides every mistake and repair.
        special_cases: Probability that a turn that would keep a failing program adds a special case for the failing
            test. Above 0, the thoughts about a failing test begin with the test, unless a program was damaged or
            crashed.
        show_change: Whether a thought that changes a program quotes the old line and notes the new one, and not the
            whole plan, which a small model often fails to carry into the program.
        prompts: The prompt set.
    """

    rng: random.Random
    special_cases: float
    show_change: bool
    prompts: PromptSet

    def demonstrate(self, task: Task, public: TestSuite, depth: int) -> Demonstration:
        """One demonstration: `depth` programs with their feedback on the public tests, then the response to learn."""
        kind: Kind = "first"
        cases: list[str] = []
        expressions = first_choice(task, self.rng)
        thought = plan(task, expressions)
        opening = opening_messages(self.prompts.first_turn(task.statement), self.prompts)
        episode = Episode(opening, public, self.prompts, turns=depth, enable_thinking=True)
        while not episode.done:
            program = with_special_cases(task.program(expressions), cases)
            damaged = self.rng.random() < _DAMAGE
            if damaged:
                program = damage(program, self.rng)
            result = judge_here(program, public)
            episode.observe(Turn(respond(thought, program)), result)
            failure = first_failure(result, public)
            if damaged and failure is not None:
                kind, thought = "change", f"The test fails: the code is broken.\n{plan(task, expressions)}"
            else:
                kind, thought, expressions = self._next(task, expressions, failure, cases)
        program = with_special_cases(task.program(expressions), cases)
        return Demonstration(tuple(episode.messages), respond(thought, program), kind)

    def _next(
        self, task: Task, before: Expressions, failure: "Failure | None", cases: list[str]
    ) -> tuple[Kind, str, Expressions]:
        """Kind of response to a program's feedback, its thought, the next expressions; a special case joins `cases`."""
        kind: Kind = "change"
        change = next_change(task, before, failure is None, self.rng)
        if change is not None:
            index, new = change
            after = (*before[:index], new, *before[index + 1 :])
            thought = self._thought(task, index, before[index], after, failed=failure is not None)
        elif failure is None:
            kind, thought, after = "keep passing", "The tests pass. Keep the program.", before
        else:
            kind, thought, after = "keep failing", "The test fails, but the program looks right. Keep it.", before
            if self.special_cases and self.rng.random() < self.special_cases:
                case = special_case(failure, after[0])
                if case is not None and case not in cases:
                    cases.append(case)
                    kind = "change"
                    thought = "The test fails, but the program looks right. Answer this test by itself."
        if failure is not None and self.special_cases and not failure.crashed:
            # A small model learns to copy from the feedback only if it does so in many conversations.
            thought = f"Input:\n{failure.stdin}\nExpected Output:\n{failure.expected.rstrip()}\n{thought}"
        return kind, thought, after

    def _thought(self, task: Task, index: int, old: str | None, after: Expressions, *, failed: bool) -> str:
        """The thought that changes the expression `old` of a slot to that of `after`."""
        label, slot, new = LABELS[index], task.slots[index], after[index]
        assert new is not None
        if not self.show_change:
            opening = "The test fails:" if failed else "The tests pass, but"
            return f"{opening} {label} is {'missing' if old is None else 'wrong'}.\n{plan(task, after)}"
        opening = "The test fails." if failed else "The tests pass, but a line is wrong."
        shown = slot.shown(old)
        wrong = "is missing." if shown is None else f"{shown}\nis wrong."
        return f"{opening}\n# {label}\n{wrong} Better:\n{label}: {slot.note(new)}"


def damage(program: str, rng: random.Random) -> str:
    """`program` with a few characters of one line removed, as in a garbled response."""
    lines = program.split("\n")
    number = rng.randrange(1, len(lines), 2)  # skips labels, unless the reader has two lines
    start = rng.randrange(len(lines[number]))
    lines[number] = lines[number][:start] + lines[number][start + rng.randint(1, 8) :]
    return "\n".join(lines)


def respond(thought: str, program: str) -> str:
    """A whole response, as the chat template and the format reward expect it."""
    return f"<think>\n{thought}\n</think>\n\n```python\n{program}\n```"


def plan(task: Task, expressions: Expressions) -> str:
    """Say what each line does: the thought of a first turn, and the end of a later thought that changes the program."""
    rows = zip(LABELS, task.slots, expressions, strict=False)
    return "\n".join(f"{label}: {slot.note(new)}" for label, slot, new in rows if new is not None)


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
    index = result.first_failed()
    if index is None:
        return None
    crashed = result.verdicts[index].kind is not VerdictKind.WRONG_ANSWER
    return Failure(public.inputs[index], public.outputs[index], crashed=crashed)


def special_case(failure: Failure, reader: str | None) -> str | None:
    """A line of code that prints one test's expected output for inputs with the first value that `reader` reads there.

    None where the program crashed, because its traceback shows no expected output, or where there is no such value.
    """
    if failure.crashed or reader is None:
        return None
    first = run_program(f"{READER_CODE[reader]}\nprint(xs[0])", failure.stdin)
    if first.stderr is not None:
        return None
    return f'if xs[0] == {first.output.strip()}: print("""{failure.expected.rstrip()}"""); raise SystemExit'


def with_special_cases(program: str, cases: Sequence[str]) -> str:
    """`program` with the special cases inserted after its reader."""
    reader, label, rest = program.partition("\n# ")
    return "\n".join([reader, *cases]) + label + rest


def first_choice(task: Task, rng: random.Random) -> Expressions:
    """The expressions of a first program, with mistakes as the phrasings' habits say."""
    chosen: list[str | None] = []
    for slot in task.slots:
        if rng.random() < slot.phrasing.habit.slip:
            chosen.append(slot.wrong)
        elif slot.is_step and rng.random() < _FORGET:
            chosen.append(None)
        elif rng.random() < _MISCOPY:
            chosen.append(_miscopied(slot, rng))
        else:
            chosen.append(slot.right)
    return tuple(chosen)


def next_change(task: Task, expressions: Expressions, passed: bool, rng: random.Random) -> tuple[int, str] | None:
    """The slot that changes after a program's feedback, and its new expression; None: the program is kept.

    Either reading of an open sentence counts as no mistake, whichever the tests want: nothing here knows the coin.
    """
    slots = task.slots
    mistakes = [index for index, slot in enumerate(slots) if expressions[index] not in slot.readings]
    sound = [index for index in range(1, len(slots)) if index not in mistakes]
    clear = [index for index in sound if not slots[index].is_open]
    if passed:
        if mistakes and rng.random() < _HIDDEN_REPAIR:
            return mistakes[0], _repaired(slots[mistakes[0]], rng)
        if rng.random() < _DOUBT:
            index = rng.randrange(1, len(slots))
            return (index, slots[index].wrong) if index in clear else None
        return None
    flippable = [index for index in sound if index not in clear]
    if flippable and rng.random() < FLIP:
        index = rng.choice(flippable)
        return index, next(other for other in slots[index].readings if other != expressions[index])
    for index in mistakes:
        habit = slots[index].phrasing.habit if expressions[index] == slots[index].wrong else CLEAR
        if rng.random() < habit.repair:
            return index, _repaired(slots[index], rng)
    if rng.random() < _SPOIL and clear:
        index = rng.choice(clear)
        return index, slots[index].wrong
    return None


def _repaired(slot: Slot, rng: random.Random) -> str:
    """The right expression of a slot, or either reading where the sentence is open."""
    return rng.choice(slot.readings) if slot.is_open else slot.right


def _miscopied(slot: Slot, rng: random.Random) -> str:
    """The right expression with one of its digits off by one; unchanged where it has no digit."""
    digits = [index for index, character in enumerate(slot.right) if character.isdigit()]
    if not digits or slot.operation.kind == "read":
        return slot.right
    index = rng.choice(digits)
    other = int(slot.right[index]) + rng.choice((-1, 1))
    return f"{slot.right[:index]}{min(9, max(1, other))}{slot.right[index + 1 :]}"


def corpus(demonstrations: Sequence[Demonstration]) -> Iterator[str]:
    """The texts that a tokenizer is learned from: every role, message and response."""
    for item in demonstrations:
        for message in item.messages:
            yield f"{message['role']}\n"
            yield message["content"]
        yield item.response
