"""Repetition: the answers of a back-reference scan over all block lengths."""

import functools
import random
import re

import pytest

from cobalt.reward.repetition import is_repetitive

WORDS = "Wait, let me look at this again. "  # 33 characters


@functools.cache
def _pattern(length):
    return re.compile(rf"(.{{{length}}})\1{{7}}", re.DOTALL)


def scan(text):
    """The rule as the paper's code has it."""
    return any(_pattern(length).search(text) for length in range(32, len(text) // 8 + 1))


def distinct(count, seed=0):
    """`count` characters without any repetition."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz \n", k=count))


@pytest.mark.parametrize(
    ("text", "repetitive"),
    [
        ("", False),
        ("-" * 255, False),
        ("-" * 256, True),
        ("ab" * 128, True),
        # The shortest block of a 3-character unit has 33 characters.
        ("abc" * 87, False),
        ("abc" * 88, True),
        (distinct(31) * 15, False),  # blocks of 62
        (distinct(31) * 16, True),
        (WORDS * 8, True),
        ("漢字と仮名" * 64, True),
        ("漢字と仮名" * 55, False),  # blocks of 35, 7.9 times
        ("a\ud800" * 128, True),
        (distinct(24_000), False),
        (distinct(23_744) + "=" * 256, True),
        (distinct(23_745) + "=" * 255, False),
        ((distinct(2999) * 8)[:-1], False),
        (distinct(3000) * 8, True),
    ],
)
def test_the_rule_at_its_borders(text, repetitive):
    assert is_repetitive(text) is repetitive
    if len(text) < 1000:
        assert scan(text) is repetitive


def planted(generator):
    """A text of up to three near-repetitions, with lengths around the borders and now and then a broken character."""
    alphabet = "ab\n|"[: generator.randint(1, 4)]
    parts = []
    for _ in range(generator.randint(1, 3)):
        length = generator.choice([1, 2, 3, 7, 16, 31, 32, 33, 34, 40, 63, 64, 65, generator.randint(1, 300)])
        unit = "".join(generator.choices(alphabet, k=length))
        total = generator.choice([256, 8 * length]) + generator.choice([-33, -2, -1, 0, 1, 2, 40])
        run = (unit * (total // length + 1))[: max(total, 0)]
        if run and generator.random() < 0.25:
            broken = generator.randrange(len(run))
            run = run[:broken] + generator.choice(alphabet + "c") + run[broken + 1 :]
        parts += ["".join(generator.choices(alphabet, k=generator.randint(0, 60))), run]
    return "".join(parts)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_the_answers_are_those_of_the_back_reference_scan(seed):
    generator = random.Random(seed)
    answers = []
    for _ in range(2000):
        text = planted(generator)
        answers.append(is_repetitive(text))
        assert answers[-1] is scan(text), text
    assert 500 < sum(answers) < 1500  # the generator stays near the border
