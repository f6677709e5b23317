"""Exact and near duplicates among programs.

Exact duplicates are equal but for comments, empty lines and white space at the end of lines. Near duplicates share most
of their runs of five tokens, as MinHash estimates it (datasketch). Nothing here runs or parses programs.
"""

import re
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

_PERMUTATIONS = 128
_RUN = 5
"""Tokens in a row that count as one feature."""

# A string is matched so that a number sign within it is not taken for a comment.
_STRING_OR_COMMENT = re.compile(
    r"""('''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")|\#[^\n]*""",
    re.DOTALL,
)
_TOKEN = re.compile(rb"\w+|[^\w\s]")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

Sketch = Any
"""datasketch's LeanMinHash."""


def normalised_source(source: str) -> str:
    """The program without comments, empty lines and white space at the end of lines."""
    without_comments = _STRING_OR_COMMENT.sub(lambda found: found[1] or "", source) if "#" in source else source
    return "\n".join(line for line in map(str.rstrip, without_comments.splitlines()) if line)


class NearDuplicates:
    """Remembers programs, and tells which new ones resemble one of them."""

    def __init__(self, threshold: float) -> None:
        """Start without a program.

        Args:
            threshold: From which Jaccard similarity of their features two programs are near duplicates, above 0 to 1.
        """
        from datasketch import LeanMinHash, MinHash, MinHashLSH

        self._threshold = threshold
        self._sketch = MinHash(num_perm=_PERMUTATIONS, seed=1, hashfunc=int)
        self._frozen = LeanMinHash
        self._index = MinHashLSH(num_perm=_PERMUTATIONS, params=_bands(threshold))
        self._known: list[Sketch] = []

    def sketch(self, source: str) -> Sketch:
        """What is compared of a program."""
        self._sketch.clear()  # a new one would draw its permutations again
        self._sketch.update_batch(_features(source))
        return self._frozen(self._sketch)

    def resembles(self, sketch: Sketch) -> bool:
        """Whether a program is a near duplicate of one that is remembered."""
        return any(self._known[place].jaccard(sketch) >= self._threshold for place in self._index.query(sketch))

    def remember(self, sketch: Sketch) -> None:
        """Remember a program."""
        self._index.insert(len(self._known), sketch)
        self._known.append(sketch)


@lru_cache
def _bands(threshold: float) -> tuple[int, int]:
    """Bands and rows of the index for a threshold; datasketch takes milliseconds to find them."""
    from datasketch import MinHashLSH

    index = MinHashLSH(threshold=threshold, num_perm=_PERMUTATIONS)
    return index.b, index.r


def _features(source: str) -> set[int]:
    """A 32-bit number for each distinct run of tokens; a program shorter than a run has one."""
    numbers = list(map(zlib.crc32, _TOKEN.findall(source.encode("utf-8", "replace"))))
    numbers += [0] * (_RUN - len(numbers))
    tokens = np.array(numbers, dtype=np.uint64)
    runs = np.zeros(len(tokens) - _RUN + 1, dtype=np.uint64)
    for place in range(_RUN):
        runs = runs * _FACTOR + tokens[place : place + len(runs)]
    return set((runs >> np.uint64(32)).tolist())
