"""Convert tests as TACO's family of data sets writes them to suites of texts, or of calls with typed arguments.

Where a test can be read in two ways, both suites come back, and a recorded solution decides which holds. For a call
the judge wants one JSON value a line and canonical JSON (`cobalt.judge.calling`). The paper's way, everything joined
with blanks, loses types, nesting and blanks within texts; it is kept as a named option. Nothing here runs a program.
"""

from collections.abc import Sequence

from cobalt.judge.calling import call_input, canonical_json
from cobalt.problem import TestSuite

REFERENCE_IMPORTS = """\
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from typing import *
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, groupby, permutations, product
from math import ceil, floor, gcd, inf, sqrt
"""
"""Imports that the sites of function problems provide, so that recorded solutions do not have them."""


class UnreadableTests(Exception):
    """A data set's tests do not have the form that they should have: an error of the data, not of this code."""


def call_readings(fn_name: object, inputs: Sequence[object], outputs: Sequence[object]) -> tuple[TestSuite, ...]:
    """The suites that a data set's argument lists and values may mean, the likelier first.

    Data sets of TACO's family wrap a returned value into a list of one, and their graders take a value as right that
    equals either the list or what is in it. Where every output is such a list the problem's solutions decide: bare
    values are tried first, then the lists.

    Args:
        fn_name: The function's name.
        inputs: A list of arguments for each test; values as `json.loads` gives them.
        outputs: The value that each call returns.

    Raises:
        UnreadableTests: an input is not a list of arguments, a value is nested too deeply for JSON, or `fn_name` is not
            an identifier.
    """
    if not isinstance(fn_name, str) or not fn_name.isidentifier():
        raise UnreadableTests("fn_name is not the name of a function")
    lines = []
    try:
        for arguments in inputs:
            if not isinstance(arguments, list):
                raise UnreadableTests("an input is not a list of arguments")
            lines.append(call_input(arguments))
        wrapped = tuple(canonical_json(output) for output in outputs)
        readings = [TestSuite(tuple(lines), wrapped, fn_name)]
        if all(isinstance(output, list) and len(output) == 1 for output in outputs):
            bare = tuple(canonical_json(output[0]) for output in outputs if isinstance(output, list))
            readings.insert(0, TestSuite(tuple(lines), bare, fn_name))
    except RecursionError:
        raise UnreadableTests("a value is nested too deeply") from None
    return tuple(readings)


def text_suite(inputs: Sequence[object], outputs: Sequence[object], between: str = " ") -> TestSuite:
    """A suite of texts as they are and lists joined by `between`; the authors' preproc_taco.py joins by blanks.

    Raises:
        UnreadableTests: an item is neither a string nor a list.
    """

    def text(item: object) -> str:
        if isinstance(item, list):
            return between.join(map(str, item))
        if not isinstance(item, str):
            raise UnreadableTests("an item is neither text nor a list")
        return item

    return TestSuite(tuple(map(text, inputs)), tuple(map(text, outputs)))


def text_readings(inputs: Sequence[object], outputs: Sequence[object]) -> tuple[TestSuite, ...]:
    """The suites that a data set's texts may mean: lists as words (the paper), or as lines (TACO's own grader).

    Raises:
        UnreadableTests: an item is neither a string nor a list.
    """
    words, lines = text_suite(inputs, outputs), text_suite(inputs, outputs, "\n")
    return (words,) if words == lines else (words, lines)


def paper_call(fn_name: str, source: str) -> str:
    """The line by which the authors' preproc_taco.py runs a function as a program; `source` is the problem's site."""
    owner = "Solution()." if source == "leetcode" else ""
    return f"\nprint({owner}{fn_name}(*input().split()))"
