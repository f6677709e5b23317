"""The trajectory viewer on a run of the paper's size."""

import os
import random

import pytest
from test_viewer import evaluated, page, text_of  # noqa: F401 - a fixture

pytestmark = pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set")


def test_250_problems_of_16_samples_and_9_turns_open_within_three_seconds(browser, page):  # noqa: F811
    generator = random.Random(0)
    words = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 9))) for _ in range(2000)]

    def record(identifier):
        # Responses that do not repeat, so that the page is no smaller than a real one's.
        texts = [
            [f"<think>{' '.join(generator.choices(words, k=100))}</think>\n```python\nprint({turn})\n```"
             for turn in range(9)]
            for _ in range(16)
        ]  # fmt: skip
        return evaluated(f"p{identifier}", texts, [[0.5] * 8 + [1.0]] * 16)

    page([record(identifier) for identifier in range(250)])
    assert browser.evaluate("index.problems.length") == 250
    assert browser.evaluate("Number(document.documentElement.dataset.ready)") < 3000
    opening = (
        "(async () => { const start = performance.now(); await openProblem(249); return performance.now() - start })()"
    )
    assert browser.evaluate(opening) < 3000
    assert "print(8)" in text_of(browser, "#turn-0-8")
