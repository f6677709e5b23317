"""Exact and near duplicates among programs.

Exact duplicates are equal but for comments, empty lines and white space at the end of lines. Near duplicates share most
of their runs of five tokens, as MinHash estimates it (datasketch). Nothing here runs or parses programs.
"""

import re
import zlib

import numpy as np

from cobalt.datasets.offline.runs import Numbers, hashed_runs

_PERMUTATIONS = 128
_RUN = 5
"""Tokens in a row that count as one feature."""

# A string is matched so that a number sign within it is not taken for a comment.
_STRING_OR_COMMENT = re.compile(
    r"""('''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")|\#[^\n]*""",
    re.DOTALL,
)
_TOKEN = re.compile(rb"\w+|[^\w\s]")


def normalised_source(source: str) -> str:
    """The program without comments, empty lines and white space at the end of lines."""
    without_comments = _STRING_OR_COMMENT.sub(lambda found: found[1] or "", source) if "#" in source else source
    return "\n".join(line for line in map(str.rstrip, without_comments.split("\n")) if line)


class NearDuplicates:
    """Remembers programs, and tells which new ones resemble one of them.

    Each new one is compared with all: the programs that a problem's groups can use are too few for an index to pay.
    """

    def __init__(self, threshold: float) -> None:
        """Start without a program.

        Args:
            threshold: From which Jaccard similarity of their features two programs are near duplicates, above 0 to 1.
        """
        from datasketch import MinHash

        self._threshold = threshold
        self._minhash = MinHash(num_perm=_PERMUTATIONS, seed=1, hashfunc=int)
        self._known: Numbers = np.empty((64, _PERMUTATIONS), dtype=np.uint64)
        self._number = 0

    def sketch(self, source: str) -> Numbers:
        """What is compared of a program: the share of equal numbers estimates the similarity."""
        self._minhash.clear()  # a new one would draw its permutations again
        self._minhash.update_batch(_features(source))
        return np.array(self._minhash.hashvalues, dtype=np.uint64)

    def resembles(self, sketch: Numbers) -> bool:
        """Whether a program is a near duplicate of one that is remembered."""
        equal = np.count_nonzero(self._known[: self._number] == sketch, axis=1)
        return bool((equal >= self._threshold * _PERMUTATIONS).any())

    def remember(self, sketch: Numbers) -> None:
        """Remember a program."""
        if self._number == len(self._known):
            self._known = np.concatenate([self._known, np.empty_like(self._known)])
        self._known[self._number] = sketch
        self._number += 1


def _features(source: str) -> set[int]:
    """A 32-bit number for each distinct run of tokens; a program shorter than a run has one."""
    numbers = list(map(zlib.crc32, _TOKEN.findall(source.encode("utf-8", "replace"))))
    numbers += [0] * (_RUN - len(numbers))
    runs = hashed_runs(np.array(numbers, dtype=np.uint64), _RUN)
    return set((runs >> np.uint64(32)).tolist())
