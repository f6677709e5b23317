"""Programs and problem statements that resemble each other, by the runs of tokens or letters that they share.

Programs are near duplicates if they share most of their runs of five tokens, as MinHash estimates it (datasketch). Of
statements letters and digits alone are compared.
"""

import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

_PERMUTATIONS = 128
_TOKENS = 5  # in a row that count as one feature of a program

# A string is matched so that a number sign within it is not taken for a comment.
_STRING_OR_COMMENT = re.compile(
    r"""('''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")|\#[^\n]*""",
    re.DOTALL,
)
_TOKEN = re.compile(rb"\w+|[^\w\s]")

_LETTERS = 16  # in a row that count as one feature of a statement
_COMMON = 20  # a feature of more statements is boilerplate
_FEWEST = 40  # a statement with fewer features that are not boilerplate is similar to none

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def normalised_source(source: str) -> str:
    """The program without comments, empty lines and white space at the end of lines."""
    without_comments = _STRING_OR_COMMENT.sub(lambda match: match[1] or "", source) if "#" in source else source
    return "\n".join(line for line in map(str.rstrip, without_comments.split("\n")) if line)


class NearDuplicates:
    """Remembers programs that resemble none of those before.

    Each new one is compared with all: the programs that a problem's groups can use are too few for an index to pay, and
    an index by locality-sensitive hashing (datasketch.MinHashLSH) misses six of ten pairs right at a threshold of 0.8.
    """

    def __init__(self, threshold: float) -> None:
        """Start without a program; `threshold` is the Jaccard similarity of near duplicates, above 0 to 1."""
        from datasketch import MinHash

        self._threshold = threshold
        self._minhash = MinHash(num_perm=_PERMUTATIONS, seed=1, hashfunc=int)
        self._known: NDArray[np.uint64] = np.empty((0, _PERMUTATIONS), dtype=np.uint64)

    def add(self, source: str) -> bool:
        """Remember a program, if it is not a near duplicate of one that is remembered; whether it is not."""
        self._minhash.clear()  # a new one would draw its permutations again
        self._minhash.update_batch(_token_runs(source))
        equal = np.count_nonzero(self._known == self._minhash.hashvalues, axis=1)
        if (equal >= self._threshold * _PERMUTATIONS).any():
            return False
        self._known = np.vstack([self._known, self._minhash.hashvalues])
        return True


def _token_runs(source: str) -> set[int]:
    """A 32-bit number for each distinct run of tokens; a program shorter than a run has one."""
    numbers = list(map(zlib.crc32, _TOKEN.findall(source.encode("utf-8", "replace"))))
    numbers += [0] * (_TOKENS - len(numbers))
    runs = np.zeros(len(numbers) - _TOKENS + 1, dtype=np.uint64)
    for offset in range(_TOKENS):
        runs = runs * _FACTOR + np.array(numbers[offset : offset + len(runs)], dtype=np.uint64)
    return set((runs >> np.uint64(32)).tolist())


def letters(statement: str) -> str:
    """The letters and digits of a statement, in lower case: what is compared of it."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", statement).lower()))


def similar_pairs(statements: Sequence[str], threshold: float) -> Iterator[tuple[int, int]]:
    """The indices (smaller first) of the statements of which the shorter shares at least a part with the longer.

    Args:
        statements: The `letters` of the statements, all different: copies would make each other boilerplate.
        threshold: The part, above 0 to 1, of the features of the statement that has fewer.
    """
    seen: set[int] = set()
    repeated: set[int] = set()
    for text in statements:
        runs = _letter_runs(text)
        repeated |= runs & seen
        seen |= runs
    features: Counter[int] = Counter()
    owners: defaultdict[int, list[int]] = defaultdict(list)
    for index, text in enumerate(statements):
        runs = _letter_runs(text)
        features[index] = len(runs)
        for run in runs & repeated:
            owners[run].append(index)
    shared: Counter[tuple[int, int]] = Counter()
    for some in owners.values():
        if len(some) <= _COMMON:
            shared.update(combinations(some, 2))
        else:
            features.subtract(some)
    for (first, second), number in shared.items():
        fewer = min(features[first], features[second])
        if fewer >= _FEWEST and number >= threshold * fewer:
            yield first, second


def _letter_runs(text: str) -> set[int]:
    return {hash(text[begin : begin + _LETTERS]) for begin in range(len(text) - _LETTERS + 1)}
