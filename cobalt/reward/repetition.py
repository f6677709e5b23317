"""Whether a text is stuck in a loop: a block of 32 characters or more, eight times in a row (Cobalt, reward).

The authors match a regular expression with a back-reference, which tries every block length and takes time that grows
with the square of the text. Here block lengths are grouped in scales: s to 2s - 1, then 2s to 4s - 1, and so on. A
repetition with a block length L of one scale makes each character equal to the one L further on, for 7L >= 7s positions
in a row. Among so many positions lie 4s in a row that start at a multiple of 3s. So it is enough to take these
stretches of 4s characters one after the other, and to look for each of them again at a distance in the scale. All such
distances are periods of the stretch and any two add up to less than its length, hence (Fine and Wilf) they are
multiples of one period, and a run that continues with one of them continues with all: the first one found decides.

A scale costs about one pass over the text, so the whole is O(n log n), with string search at the speed of C. On 24,000
characters it takes below 1 ms of CPU on text as models write it and 4 ms on the worst text found
(`benchmarks/repetition.py`); the authors' expression takes more than a second.
"""

SHORTEST_BLOCK = 32
"""Characters; shorter blocks count through their multiples, so that 256 dashes are a repetition (paper)."""

REPEATS = 8
"""Number of times in a row (paper)."""


def is_repetitive(text: str) -> bool:
    """Whether any block of at least `SHORTEST_BLOCK` characters stands in `text` `REPEATS` times in a row or more."""
    scale = SHORTEST_BLOCK
    while REPEATS * scale <= len(text):
        for start in range(0, len(text) - 5 * scale + 1, 3 * scale):
            stop = start + 4 * scale
            # The copy may begin at start + scale at the earliest, and at start + 2 * scale - 1 at the latest.
            period = text.find(text[start:stop], start + scale, stop + 2 * scale - 1) - start
            if period < 0:
                continue
            missing = (REPEATS - 1) * period - (stop - start)
            missing -= _equal(text[stop : stop + missing], text[stop + period : stop + period + missing])
            first = max(0, start - missing)
            missing -= _equal(text[first:start][::-1], text[first + period : start + period][::-1])
            if missing == 0:
                return True
        scale *= 2
    return False


def _equal(left: str, right: str) -> int:
    """Number of characters that two texts have in common at their beginning."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
