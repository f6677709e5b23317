"""CPU time of the repetition rule, compared with a back-reference scan, and of the reward, which blocks an event loop.

    python benchmarks/repetition.py [--characters 24000]

Each row is a well-formed response of that many characters, nearly all of them of one kind; the later kinds are the
slowest that were found. Times are milliseconds of CPU time of this thread, the smallest of five runs (the scan runs
once).

| column | what is measured |
|---|---|
| scan | the scan of the paper's code: one regular expression for each block length from 32, compiled beforehand |
| rule | this project's rule |
| ratio | scan to rule; "-" if the text is repetitive, because both then stop early |
| whole reward | everything that a reward computes: program, repetition, form, lengths |

The whole reward is measured with the text as thinking and as explanation, and the longer time is shown. The answers of
scan and rule must agree.
"""

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from cobalt.reward import compute_reward, program_to_judge, token_counter
from cobalt.reward.repetition import is_repetitive
from cobalt.stage.cli import run_script

ENDING = "\n</think>\n\n```python\nprint(int(input()) ** 2)\n```\nIt squares the number."


@dataclass(frozen=True)
class Arguments:
    """Compare the repetition rule with a back-reference scan."""

    characters: int = 24_000
    """Length of a response; the paper's 6,144 tokens are about 24,000 characters."""
    seed: int = 0
    """Seed of the texts."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    token_counter()
    lengths = range(32, arguments.characters // 8 + 1)
    patterns = [re.compile(rf"(.{{{length}}})\1{{7}}", re.DOTALL) for length in lengths]
    print(f"{'text':24}{'scan':>8}{'rule':>8}{'ratio':>8}{'whole reward':>14}{'repetitive':>12}")
    for name, filler in _texts(random.Random(arguments.seed), arguments.characters).items():
        filler = filler[: arguments.characters - len(ENDING)]
        text = filler + ENDING
        started = time.thread_time()
        scanned = any(pattern.search(text) for pattern in patterns)
        scan = 1000 * (time.thread_time() - started)
        if scanned != is_repetitive(text):
            raise SystemExit(f"{name}: the scan says {scanned}, the rule {not scanned}")
        rule = _milliseconds(lambda text=text: is_repetitive(text))
        whole = max(
            _milliseconds(lambda text=text: (program_to_judge(text), compute_reward(text, 0.0)))
            for text in (text, ENDING + filler)
        )
        ratio = "-" if scanned else f"{scan / rule:.0f}"
        print(f"{name:24}{scan:8.0f}{rule:8.2f}{ratio:>8}{whole:14.1f}{scanned!s:>12}")
    return 0


def _texts(generator: random.Random, length: int) -> dict[str, str]:
    """Thinking of several kinds, each at least `length` characters long."""
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(1, 9))) for _ in range(400)]
    table = (f"| {generator.randint(0, 99):2} | {generator.choice(words):9} |\n" for _ in range(length))
    return {
        "words": " ".join(generator.choices(words, k=length)),
        "table": "".join(table),
        "two letters": "".join(generator.choices("ab", k=length)),
        "blocks seven times": "".join(7 * "".join(generator.choices(words, k=9)) for _ in range(length // 50)),
        "one long word": "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=length)),
        "rulers up to 255": _rulers("-", 200, 255, generator, length),
        "uneven rulers up to 255": _rulers("-=--", 150, 255, generator, length),
        "rulers of thousands": _rulers("-", 4500, 6000, generator, length),
        "one ruler": "-" * length,
    }


def _rulers(unit: str, shortest: int, longest: int, generator: random.Random, length: int) -> str:
    rulers = ((unit * longest)[: generator.randint(shortest, longest)] for _ in range(length // shortest + 1))
    return "".join(ruler + generator.choice("abcde") for ruler in rulers)


def _milliseconds(function: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        started = time.thread_time()
        function()
        times.append(time.thread_time() - started)
    return 1000 * min(times)


if __name__ == "__main__":
    run_script(Arguments, main)
