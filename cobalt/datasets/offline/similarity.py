"""Programs and problem statements that resemble each other, by the runs of tokens or letters that they share.

Programs are near duplicates if they share most of their runs of five tokens, as MinHash estimates it (datasketch). Of
statements letters and digits alone are compared.
"""

import re
import unicodedata
import zlib
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

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
    """Remembers programs, and tells which new ones resemble one of them.

    Each new one is compared with all: the programs that a problem's groups can use are too few for an index to pay, and
    an index by locality-sensitive hashing (datasketch.MinHashLSH) misses six of ten pairs right at a threshold of 0.8.
    """

    def __init__(self, threshold: float) -> None:
        """Start without a program; `threshold` is the Jaccard similarity of near duplicates, above 0 to 1."""
        from datasketch import MinHash

        self._threshold = threshold
        self._minhash = MinHash(num_perm=_PERMUTATIONS, seed=1, hashfunc=int)
        self._known: Numbers = np.empty((0, _PERMUTATIONS), dtype=np.uint64)

    def sketch(self, source: str) -> Numbers:
        """What is compared of a program: the share of equal numbers estimates the similarity."""
        self._minhash.clear()  # a new one would draw its permutations again
        self._minhash.update_batch(_token_runs(source))
        return np.array(self._minhash.hashvalues, dtype=np.uint64)

    def resembles(self, sketch: Numbers) -> bool:
        """Whether a program is a near duplicate of one that is remembered."""
        equal = np.count_nonzero(self._known == sketch, axis=1)
        return bool((equal >= self._threshold * _PERMUTATIONS).any())

    def remember(self, sketch: Numbers) -> None:
        """Remember a program."""
        self._known = np.vstack([self._known, sketch])


def _token_runs(source: str) -> set[int]:
    """A 32-bit number for each distinct run of tokens; a program shorter than a run has one."""
    numbers = list(map(zlib.crc32, _TOKEN.findall(source.encode("utf-8", "replace"))))
    numbers += [0] * (_TOKENS - len(numbers))
    runs = _hashed_runs(np.array(numbers, dtype=np.uint64), _TOKENS)
    return set((runs >> np.uint64(32)).tolist())


def letters(statement: str) -> str:
    """The letters and digits of a statement, in lower case: what is compared of it."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", statement).lower()))


def similar_pairs(statements: Sequence[str], threshold: float) -> list[tuple[int, int]]:
    """The indices (smaller first) of the statements of which the shorter shares at least a part with the longer.

    Args:
        statements: The `letters` of the statements, all different: copies would make each other boilerplate.
        threshold: The part, above 0 to 1, of the features of the statement that has fewer.
    """
    if len(statements) < 2:
        return []
    features = [_letter_runs(statement) for statement in statements]
    owners = np.repeat(np.arange(len(features), dtype=np.uint64), [len(own) for own in features])
    _, index, sizes = np.unique(np.concatenate(features), return_inverse=True, return_counts=True)
    telling = (sizes <= _COMMON)[index]
    known = np.bincount(owners[telling].astype(np.int64), minlength=len(statements))
    by_feature = owners[np.argsort(index, kind="stable")]
    begins = np.cumsum(sizes) - sizes
    keys = [np.array([], dtype=np.uint64)]  # for each feature of a pair: first x number of statements + second
    for size in range(2, _COMMON + 1):
        offsets = begins[sizes == size]
        for one, other in combinations(range(size), 2):  # owners are in order, so the first is the smaller
            keys.append(by_feature[offsets + one] * np.uint64(len(statements)) + by_feature[offsets + other])
    pairs, shared = np.unique(np.concatenate(keys), return_counts=True)
    first, second = np.divmod(pairs.astype(np.int64), len(statements))
    fewer = np.minimum(known[first], known[second])
    similar = (fewer >= _FEWEST) & (shared >= threshold * fewer)
    return list(zip(first[similar].tolist(), second[similar].tolist(), strict=True))


def _letter_runs(statement: str) -> Numbers:
    """The distinct runs of letters of a statement, as numbers."""
    codes = np.frombuffer(statement.encode("utf-32-le", "replace"), dtype=np.uint32).astype(np.uint64)
    return np.unique(_hashed_runs(codes, _LETTERS))


def _hashed_runs(numbers: Numbers, length: int) -> Numbers:
    """A 64-bit number for each run of `length` numbers, in their order; none if there are fewer numbers."""
    runs = np.zeros(max(0, len(numbers) - length + 1), dtype=np.uint64)
    for offset in range(length):
        runs = runs * _FACTOR + numbers[offset : offset + len(runs)]
    return runs
