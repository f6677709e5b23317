"""Pairs of problem statements that share much of their text, whatever their mark-up.

Letters and digits alone are compared, in runs of a fixed length. A run that many statements have is boilerplate ("The
input is given from Standard Input in the following format") and does not count. A translation is not similar, and
neither is a statement in other words.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cobalt.datasets.offline.runs import Numbers, hashed_runs

_RUN = 16
"""Letters in a row that count as one feature."""
_COMMON = 20
"""A feature of more statements than this is boilerplate."""
_FEWEST = 40
"""A statement with fewer features that are not boilerplate is similar to none: too little is known of it."""


def letters(statement: str) -> str:
    """The letters and digits of a statement, in lower case: what is compared of it."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", statement).lower()))


def similar_pairs(statements: Sequence[str], threshold: float) -> list[tuple[int, int]]:
    """The places (smaller first) of the statements of which the shorter shares at least a part with the longer.

    Args:
        statements: The `letters` of the statements, all different: copies would make each other boilerplate.
        threshold: The part, above 0 to 1, of the features of the statement that has fewer.
    """
    if len(statements) < 2:
        return []
    features = [_features(statement) for statement in statements]
    owners = np.repeat(np.arange(len(features), dtype=np.uint64), [len(own) for own in features])
    values = np.concatenate(features)
    order = np.argsort(values, kind="stable")
    values, owners = values[order], owners[order]
    begins = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1]))) if len(values) else np.array([], int)
    sizes = np.diff(np.append(begins, len(values)))
    telling = np.repeat(sizes <= _COMMON, sizes)
    known = np.bincount(owners[telling].astype(np.int64), minlength=len(statements))
    keys, shared = _shared(owners, begins, sizes, len(statements))
    first, second = (keys // np.uint64(len(statements))).astype(int), (keys % np.uint64(len(statements))).astype(int)
    fewer = np.minimum(known[first], known[second])
    similar = (fewer >= _FEWEST) & (shared >= threshold * fewer)
    return list(zip(first[similar].tolist(), second[similar].tolist(), strict=True))


def _shared(
    owners: Numbers, begins: NDArray[np.int64], sizes: NDArray[np.int64], number: int
) -> tuple[Numbers, Numbers]:
    """For each pair that shares a feature, its number (first x `number` + second) and how many features it shares."""
    keys: list[Numbers] = [np.array([], dtype=np.uint64)]
    for size in range(2, _COMMON + 1):
        places = begins[sizes == size]
        for one in range(size):
            for other in range(one + 1, size):  # owners are in order, so the first is the smaller
                keys.append(owners[places + one] * np.uint64(number) + owners[places + other])
    pairs, shared = np.unique(np.concatenate(keys), return_counts=True)
    return pairs, shared.astype(np.uint64)


def _features(statement: str) -> Numbers:
    """The distinct runs of letters of a statement, as numbers."""
    codes = np.frombuffer(statement.encode("utf-32-le", "replace"), dtype=np.uint32).astype(np.uint64)
    return np.unique(hashed_runs(codes, _RUN))
