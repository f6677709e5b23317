"""Synthetic evaluated records of realistic length, for the benchmarks of reading and processing.

Texts are slices of the standard library's source, so that they have the words and the indentation of programs. A
response has about 9,000 characters of thinking and an answer of 2,500. A problem has 4 public and 16 hidden tests. Pass
rates are drawn at random for each turn.
"""

import json
import random
import sysconfig
from pathlib import Path
from typing import Any

from cobalt.episode import Message, load_prompts
from cobalt.episode.record import encode_evaluation, encode_multi_turn
from cobalt.episode.trajectory import Trajectory, Turn
from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.problems.problem import Problem, TestSuite

PUBLIC, HIDDEN = 4, 16
_PROMPTS = load_prompts("paper")


def library_sources() -> str:
    """Up to ten million characters of the standard library's source."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)[:10_000_000]


def write_evaluation(path: Path, problems: int, samples: int, turns: int) -> None:
    """Write evaluated records with ids from 0; the records are the same every time."""
    sources, rng = library_sources(), random.Random(0)
    with path.open("w", encoding="utf-8") as output:
        for number in range(problems):
            output.write(json.dumps(_record(rng, sources, number, samples, turns), ensure_ascii=False) + "\n")


def _record(rng: random.Random, sources: str, number: int, samples: int, turns: int) -> dict[str, Any]:
    def text(mean: int) -> str:
        characters = int(mean * rng.uniform(0.5, 1.5))
        start = rng.randrange(len(sources) - characters)
        return sources[start : start + characters]

    def judged() -> Turn:
        passed = rng.choice([0, 5, 10, 15, 20, 20])
        public = PUBLIC if passed == PUBLIC + HIDDEN else passed // 5
        kinds = [VerdictKind.PASSED] * public + [VerdictKind.WRONG_ANSWER] * (PUBLIC - public)
        passing = [kind is VerdictKind.PASSED for kind in kinds]
        messages = ["" if ok else text(500) for ok in passing]
        hidden = passed - public
        return Turn(
            response=f"<think>\n{text(9000)}\n</think>\n\n{text(2500)}",
            finish_reason="stop",
            prompt_tokens=1000,
            completion_tokens=3000,
            public_pass_rate=public / PUBLIC,
            public_result=ExecResult(passing, messages, [Verdict(kind, 0.01, 0.02, 0, 9_000_000) for kind in kinds]),
            hidden_pass_rate=hidden / HIDDEN,
            hidden_verdicts=(VerdictKind.PASSED,) * hidden + (VerdictKind.WRONG_ANSWER,) * (HIDDEN - hidden),
            feedback=_PROMPTS.feedback(text(700)),
        )

    instruction = _PROMPTS.first_turn(text(1500))
    tests = [(text(400), text(60)) for _ in range(PUBLIC + HIDDEN)]
    fields = {
        "id": number,
        "difficulty": "MEDIUM",
        "question": instruction,
        "instruction": instruction,
        "test_cases": _suite(tests),
        "public_test_cases": _suite(tests[:PUBLIC]),
        "hidden_test_cases": _suite(tests[PUBLIC:]),
    }
    problem = Problem.parse(fields)
    trajectories = []
    for sample in range(samples):
        own = tuple(judged() for _ in range(turns))
        messages: list[Message] = [
            {"role": "system", "content": _PROMPTS.system},
            {"role": "user", "content": instruction},
        ]
        for turn in own:
            messages.append({"role": "assistant", "content": turn.response.rpartition("</think>\n\n")[2]})
            messages.append({"role": "user", "content": turn.feedback or ""})
        trajectories.append(Trajectory(problem, sample, messages, own))
    first = {"responses": [trajectory.turns[0].response for trajectory in trajectories]}
    return fields | first | encode_multi_turn(trajectories, "benign") | encode_evaluation(trajectories)


def _suite(tests: list[tuple[str, str]]) -> str:
    return TestSuite(tuple(stdin for stdin, _ in tests), tuple(expected for _, expected in tests)).to_json()
