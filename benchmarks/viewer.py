"""How long the viewer's page takes to open, to open its last problem and to search all programs, in a real Chromium.

    PYTHONPATH=tests python benchmarks/viewer.py [--problems 250] [--samples 16] [--turns 9] [--runs 1]

Makes evaluated records whose responses have 7,500 characters of thinking in random words and a program of about 1,200
characters of the standard library's source, in which a turn changes a line. Writes their page and opens it from the
disk. "open" is the time from navigation until the page's own script has drawn the list, the figures and the first
problem. The judge and the engine are not run.
"""

import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic import library_sources

from cobalt.cli import run_script
from cobalt.report.viewer.page import write_viewer

THINKING = 7500
HIDDEN = ["passed"] * 4 + ["wrong_answer"] * 3
PUBLIC = {"passing": [True, False, False, False], "feedback": ["", "Expected Output: 9", "", ""]}


@dataclass(frozen=True)
class Arguments:
    """Measure the page of the trajectory viewer."""

    problems: int = 250
    """Number of problems."""
    samples: int = 16
    """Number of trajectories for each problem."""
    turns: int = 9
    """Number of programs in each trajectory."""
    runs: int = 1
    """Number of runs on the page: 1 or 2."""


def records(arguments: Arguments, seed: int) -> Iterator[dict[str, Any]]:
    """The evaluated records of one run, one for each problem."""
    rng, lines = random.Random(seed), library_sources().splitlines()
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(2000)]
    tests = json.dumps({"inputs": ["1\n"] * 4, "outputs": ["1\n"] * 4})
    hidden = json.dumps({"inputs": ["2\n"] * 7, "outputs": ["2\n"] * 7})

    def trajectory() -> list[str]:
        start = rng.randrange(len(lines) - 40)
        program = [line for line in lines[start : start + 35] if "```" not in line]
        responses = []
        for _ in range(arguments.turns):
            program[rng.randrange(len(program))] = rng.choice(lines).replace("```", "")
            thinking = " ".join(rng.choices(words, k=THINKING // 6))[:THINKING]
            responses.append(f"<think>\n{thinking}\n</think>\n\n```python\n" + "\n".join(program) + "\n```")
        return responses

    shape = [[None] * arguments.samples] * arguments.turns
    for number in range(arguments.problems):
        samples = [trajectory() for _ in range(arguments.samples)]
        yield {
            "id": f"p{number}",
            "difficulty": rng.choice(["EASY", "MEDIUM", "HARD"]),
            "question": " ".join(random.Random(number).choices(["print", "the", "sum", "of", "numbers"], k=200)),
            "test_cases": tests,
            "public_test_cases": tests,
            "hidden_test_cases": hidden,
            "raw_responses": [list(turn) for turn in zip(*samples, strict=True)],
            "finish_reasons": [["stop" for _ in row] for row in shape],
            "completion_tokens": [[rng.randrange(500, 6144) for _ in row] for row in shape],
            "public_exec_results": [[PUBLIC for _ in row] for row in shape],
            "all_pass_rates": [[4 / 7] * arguments.turns for _ in samples],
            "hidden_verdicts": [[HIDDEN] * arguments.turns for _ in samples],
        }


def main(arguments: Arguments) -> int:
    """Print one line for each figure; the exit code."""
    from chromium import Chromium  # of tests/, which is on no path by itself

    with tempfile.TemporaryDirectory() as name, Chromium(Path(name) / "profile") as browser:
        folder = Path(name)
        runs = {f"run{seed}": folder / f"run{seed}.jsonl" for seed in range(arguments.runs)}
        for seed, path in enumerate(runs.values()):
            with path.open("w", encoding="utf-8") as output:
                output.writelines(json.dumps(record) + "\n" for record in records(arguments, seed))
        start = time.perf_counter()
        write_viewer(runs, folder / "view.html")
        print(f"write the page: {time.perf_counter() - start:.1f} s")
        print(f"size: {(folder / 'view.html').stat().st_size / 2**20:.1f} MiB")
        browser.open(folder / "view.html")
        print(f"open: {browser.evaluate('Number(document.documentElement.dataset.ready)') / 1000:.2f} s")
        timed = "(async () => {{ const start = performance.now(); await {}; return performance.now() - start; }})()"
        last = browser.evaluate(timed.format(f"openProblem({arguments.problems - 1})"))
        print(f"open the last problem: {last / 1000:.2f} s")
        search = browser.evaluate(timed.format("searchInside('def __init__')"))
        print(f"search all programs: {search / 1000:.1f} s, found in {browser.evaluate('hits.size')} problems")
        draw = browser.evaluate(
            "(() => { const start = performance.now(); refresh(); return performance.now() - start })()"
        )
        print(f"draw list and figures after a filter changed: {draw:.0f} ms")
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
