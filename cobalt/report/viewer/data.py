"""Data that the page shows of each problem in a run: figures for the list, and a piece with all of its trajectories.

Both can be written as JSON and hold text as it is: the page escapes it. Texts that repeat within a problem (programs,
responses, feedback) are held once and referred to by their index. Nothing is judged here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from cobalt.episode import split_thinking
from cobalt.episode.record import feedback_tests
from cobalt.episode.trajectory import ProblemTrajectories, Turn
from cobalt.hacking.events import HackingEvent
from cobalt.judge import VerdictKind
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError

KINDS = tuple(kind.value for kind in VerdictKind)
_Texts = dict[str, int]  # distinct texts in the order they came, with their indices
SHOWN_CHARACTERS = 4000
"""Number of characters of a test's input or output that the page holds; real tests can have megabytes."""
OPENING_CHARACTERS = 1000
"""Number of characters at the beginning of a question that the list can be searched by."""


class ProblemData(NamedTuple):
    """Data that the page has of one problem in one run; all of it can be written as JSON.

    Attributes:
        facts: `{id, opening, difficulty, tests}`: the same in every run on the problem.
        figures: `{levels, kinds, tokens, hacked}`, for the list, the filters and the plots. `levels` has one string for
            each sample, with one character for each turn: "S" where all hidden tests pass, otherwise the tenths of them
            that do (0 to 9). `kinds` is [sample][turn]: the sum of 2 to the power of the index in `KINDS` of each
            verdict that the program got on a public or hidden test. `tokens` is [sample][turn], or None if no turn has
            them. `hacked` lists [sample, turn].
        piece: `{question, public, impossible, hidden, texts, openings, samples}` with `samples` [sample][turn].
            `public` are the tests that the feedback came from, `impossible` the positions of those whose expected
            output was made wrong. `openings` are the messages before the first program, as [role, text]: one list for
            each sample, or a single one if all samples have the same.
    """

    facts: dict[str, Any]
    figures: dict[str, Any]
    piece: dict[str, Any]


def problem_data(group: ProblemTrajectories, events: Sequence[HackingEvent]) -> ProblemData:
    """Data that the page has of one evaluated problem in one run.

    Args:
        group: The problem and its trajectories, as `cobalt.episode.record.read_trajectories` gives them.
        events: The hacking events of this problem.

    Raises:
        UserError: the problem is not evaluated, or an event is not of this run.
    """
    problem = group.problem
    public, true_pairs = feedback_tests(problem), set(_pairs(problem.public_tests))
    rates = [trajectory.hidden_pass_rates for trajectory in group.trajectories]
    texts: _Texts = {}
    samples = [
        [_turn(turn, rate, texts) for turn, rate in zip(trajectory.turns, row, strict=True)]
        for trajectory, row in zip(group.trajectories, rates, strict=True)
    ]
    _mark_events(samples, events, list(texts))
    tokens = [[turn.completion_tokens for turn in trajectory.turns] for trajectory in group.trajectories]
    first_messages = [trajectory.messages and trajectory.context(0) for trajectory in group.trajectories]
    openings = [[[item["role"], _index(texts, item["content"])] for item in messages] for messages in first_messages]
    return ProblemData(
        facts={
            "id": problem.id,
            "opening": " ".join(problem.question.split())[:OPENING_CHARACTERS],
            "difficulty": str(problem.record.get("difficulty") or ""),
            "tests": len(problem.hidden_tests),
        },
        figures={
            "levels": ["".join("S" if rate == 1.0 else str(min(9, int(10 * rate))) for rate in row) for row in rates],
            "kinds": [list(map(_kinds, trajectory.turns)) for trajectory in group.trajectories],
            "tokens": None if all(count is None for row in tokens for count in row) else tokens,
            "hacked": sorted([event.sample, event.turn] for event in events),
        },
        piece={
            "question": problem.question,
            "public": _tests(public),
            "impossible": [index for index, pair in enumerate(_pairs(public)) if pair not in true_pairs],
            "hidden": _tests(problem.hidden_tests),
            "openings": openings[:1] if all(opening == openings[0] for opening in openings) else openings,
            "texts": list(texts),
            "samples": samples,
        },
    )


def _mark_events(samples: list[list[dict[str, Any]]], events: Sequence[HackingEvent], texts: Sequence[str]) -> None:
    """Add the category of each event to its turn.

    Raises:
        UserError: an event is not of these turns.
    """
    for event in events:
        at = f"the hacking event of sample {event.sample}, turn {event.turn}"
        if not (0 <= event.sample < len(samples) and 0 <= event.turn < len(samples[event.sample])):
            raise UserError(f"{at} is one that the record does not have")
        entry = samples[event.sample][event.turn]
        if event.program is not None and (entry["program"] is None or texts[entry["program"]] != event.program):
            raise UserError(f"{at} has another program: give the events of this run")
        entry["hacked"] = event.category


def _index(texts: _Texts, text: str | None) -> int | None:
    return None if text is None else texts.setdefault(text, len(texts))


def _turn(turn: Turn, rate: float, texts: _Texts) -> dict[str, Any]:
    """One turn: indices into `texts`, a digit of `KINDS` for each test, tokens and times; absent fields left out."""
    entry: dict[str, Any] = {"rate": rate, "program": _index(texts, turn.program)}
    thinking, answer = _parts(turn.response)
    entry |= {"response": _index(texts, answer)} | ({"thinking": _index(texts, thinking)} if thinking else {})
    if (result := turn.public_result) is not None:
        entry |= {
            "public": _digits([verdict.kind for verdict in result.verdicts]),
            "messages": [_index(texts, message) for message in result.feedback],
            "cpu": [round(verdict.cpu_seconds, 4) for verdict in result.verdicts],
            "seconds": round(result.run_seconds, 3),
        }
    more = {
        "feedback": _index(texts, turn.feedback),
        "hidden": None if turn.hidden_verdicts is None else _digits(turn.hidden_verdicts),
        "tokens": turn.completion_tokens,
        "finish": turn.finish_reason,
        "cost": turn.cost,
        "error": turn.error or None,
    }
    return entry | {name: value for name, value in more.items() if value is not None}


def _parts(response: str) -> tuple[str, str]:
    """The thinking of a response, with its tags and the space around it, and the rest; together they are the response.

    The thinking is "" if there is none. The rest is the answer of `split_thinking` with the space after it.
    """
    thinking, answer = split_thinking(response)
    if not thinking:
        return "", response
    start = len(response.rstrip()) - len(answer)
    return response[:start], response[start:]


def _kinds(turn: Turn) -> int:
    """The kinds of verdicts of one turn, as `ProblemData.figures` has them."""
    verdicts = set(turn.hidden_verdicts or ())
    if turn.public_result is not None:
        verdicts |= {verdict.kind for verdict in turn.public_result.verdicts}
    return sum(1 << KINDS.index(kind) for kind in verdicts)


def _digits(kinds: Sequence[VerdictKind]) -> str:
    return "".join(str(KINDS.index(kind.value)) for kind in kinds)


def _tests(suite: TestSuite) -> list[list[str]]:
    return [[_cut(text) for text in pair] for pair in _pairs(suite)]


def _pairs(suite: TestSuite) -> list[tuple[str, str]]:
    """Input and expected output of each test."""
    return list(zip(suite.inputs, suite.outputs, strict=True))


def _cut(text: str) -> str:
    more = len(text) - SHOWN_CHARACTERS
    return text if more <= 0 else f"{text[:SHOWN_CHARACTERS]}\n... ({more:,} more characters)"
