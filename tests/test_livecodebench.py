"""LiveCodeBench's packed tests: decoding that cannot run code. What its rows become is in test_converters.py."""

import base64
import json
import pickle
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.datasets.livecodebench import decode_private_tests
from cobalt.stage.errors import UserError

STDIN = "stdin"
FUNCTIONAL = "functional"


def cases(kind, *pairs):
    return [{"input": stdin, "output": expected, "testtype": kind} for stdin, expected in pairs]


def wrap(pickled):
    return base64.b64encode(zlib.compress(pickled)).decode()


def packed(content, protocol=4):
    return wrap(pickle.dumps(json.dumps(content), protocol=protocol))


def stdin_row(identifier="abc1_a", **fields):
    return {
        "question_title": "Square",
        "question_content": "Print the square.\n\nSample Input 1\n\n3\n\nSample Output 1\n\n9\n",
        "platform": "atcoder",
        "question_id": identifier,
        "contest_id": "abc1",
        "contest_date": "2025-01-04T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(cases(STDIN, ("3\n", "9\n"))),
        "private_test_cases": packed(cases(STDIN, ("4\n", "16\n"), ("5\n", "25\n"))),
        "metadata": "{}",
    } | fields


def function_row(identifier="3001", **fields):
    called = {
        "question_content": "Return the longest text.\n\nExample 1:\n\nInput: ...\n",
        "platform": "leetcode",
        "starter_code": "class Solution:\n    def longest(self, words: List[str], least: int) -> List[str]:\n        ",
        "public_test_cases": json.dumps(cases(FUNCTIONAL, ('["a", "b c"]\n2', '["b c"]'))),
        "private_test_cases": packed(cases(FUNCTIONAL, ("[]\n0", "[]"), ('["x","yy"]\n1', '["x","yy"]'))),
        "metadata": json.dumps({"func_name": "longest"}),
    }
    return stdin_row(identifier, **called | fields)


@given(
    st.lists(st.fixed_dictionaries({"input": st.text(), "output": st.text(), "testtype": st.just(STDIN)}), max_size=3),
    st.integers(0, 5),
)
def test_every_protocol_and_plain_json_decode_to_what_was_packed(content, protocol):
    assert decode_private_tests(packed(content, protocol)) == content
    assert decode_private_tests(json.dumps(content)) == content


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path, protocol):
    trap = tmp_path / "ran"
    pickled = pickle.dumps(Malicious(trap), protocol)
    with pytest.raises(UserError, match="code"):
        decode_private_tests(wrap(pickled))
    assert not trap.exists()
    pickle.loads(pickled)
    assert trap.exists(), "the trap itself must work, or this test says nothing"


CODE = (pickle.dumps(["[]"]), pickle.dumps(b"[]", 3), b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04" + b"\x94" * (1 << 20))
REFUSED = {
    "private_test_cases": ("é", "", packed([])[:12], wrap(b"\x80\x04\x8c\xff"), wrap(b"\x80\x04.")),
    "private_test_cases.*code": map(wrap, CODE),
    "private_test_cases.*JSON": ("[{", wrap(pickle.dumps("{"))),
    "private_test_cases.*100": (wrap(pickle.dumps("[" * 100_000)),),
    "surrogate": (packed(cases(STDIN, ("\ud800", "1"))), wrap(pickle.dumps('[{"input": "\ud800"}]'))),
}


@pytest.mark.parametrize(("says", "text"), [(says, text) for says, texts in REFUSED.items() for text in texts])
def test_data_that_is_not_a_packed_text_is_refused(says, text):
    with pytest.raises(UserError, match=says):
        decode_private_tests(text)


def test_a_decompression_bomb_is_not_unpacked():
    bomb = wrap(b"\0" * (64 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(UserError, match="private_test_cases.*1048576"):
        decode_private_tests(bomb, limit=1 << 20)
