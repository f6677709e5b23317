"""LiveCodeBench into problems: decoding that cannot run code, both kinds of problems, windows, and bad files."""

import asyncio
import base64
import json
import pickle
import zlib
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import write_lines

from cobalt.datasets.livecodebench import LiveCodeBenchSettings, decode_private_tests, livecodebench
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.judge.prelude import GRADERS
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.stage.errors import UserError

STDIN = "stdin"
FUNCTIONAL = "functional"


def cases(kind, *pairs):
    return [{"input": given, "output": expected, "testtype": kind} for given, expected in pairs]


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


def prepare(tmp_path, rows, **settings):
    chosen = LiveCodeBenchSettings(tmp_path / "out.jsonl", write_lines(tmp_path / "test6.jsonl", rows), **settings)
    return livecodebench(chosen).summary["problems"], load_problems(chosen.output_file)


# Decoding


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
    "not valid JSON": ("[{", wrap(pickle.dumps("{"))),
    "too deeply": (wrap(pickle.dumps("[" * 100_000)),),
    "half of a surrogate pair": (packed(cases(STDIN, ("\ud800", "1"))), wrap(pickle.dumps('[{"input": "\ud800"}]'))),
}


@pytest.mark.parametrize(("says", "text"), [(says, text) for says, texts in REFUSED.items() for text in texts])
def test_data_that_is_not_a_packed_text_is_refused(says, text):
    with pytest.raises(UserError, match=says):
        decode_private_tests(text)


def test_a_decompression_bomb_is_not_unpacked():
    bomb = wrap(b"\0" * (64 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(UserError, match="unpacks to more than 1048576 bytes"):
        decode_private_tests(bomb, limit=1 << 20)


# Problems


SHORT = """class Solution:
    def longest(self, words: List[str], least: int) -> List[str]:
        return tuple(word for word in words if len(word) >= least)
"""
SQUARE, PRELUDE = "print(int(input()) ** 2)", "print(math.prod([int(input())] * 2))"
RETURN = "print(int(input()) ** 2, end=' \\n\\n')\nif True:\n    return\n1 / 0"
FUTURE = "from __future__ import annotations\n@cache\ndef f(n: Any): return n * n\nprint(f(int(input())))"


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("make", "program", "paper", "prepared_as_paper", "passes"),
    [
        (stdin_row, PRELUDE, False, False, True),
        (stdin_row, RETURN, False, False, True),
        (stdin_row, FUTURE, False, False, True),
        (stdin_row, SQUARE, True, False, True),
        (function_row, SHORT, False, False, True),
        (stdin_row, PRELUDE, True, True, False),
        (stdin_row, RETURN, True, True, False),
    ],
)
async def test_programs_are_judged_as_the_data_set_s_own_grader_does_and_in_paper_mode_without_it(
    tmp_path, make, program, paper, prepared_as_paper, passes
):
    _, [problem] = await asyncio.to_thread(prepare, tmp_path, [make()], paper_mode=prepared_as_paper)
    async with LocalJudge(JudgeSettings(concurrency=1, paper=paper, paper_guard=False)) as judge:
        assert (await judge.judge(program, problem.tests)).pass_rate == passes


def test_a_stdin_problem_is_taken_as_it_is(tmp_path):
    counts, [problem] = prepare(tmp_path, [stdin_row()])
    assert counts == {"read": 1, "outside the dates": 0, "kept": 1, "of them called functions": 0}
    grader = {"prelude": GRADERS, "comparison": "lines", "top_level_return": True}
    assert problem.public_tests == TestSuite(("3\n",), ("9\n",), **grader)
    assert problem.hidden_tests == TestSuite(("4\n", "5\n"), ("16\n", "25\n"), **grader)
    assert problem.tests == TestSuite(("3\n", "4\n", "5\n"), ("9\n", "16\n", "25\n"), **grader)
    assert "Sample Input 1" in problem.instruction
    copied = ("platform", "contest_date", "difficulty", "question_id")
    assert [problem.record[name] for name in copied] == [stdin_row()[name] for name in copied]
    assert problem.id == "abc1_a"


def test_a_functional_problem_calls_its_function_with_integers_of_any_length(tmp_path):
    long = "9" * 5000
    tests = cases(FUNCTIONAL, ("[]\n0", "[]"), ('["x","yy"]\n1', '["x","yy"]'), (f"[{long}]\n-{long}", long))
    counts, [problem] = prepare(tmp_path, [function_row(private_test_cases=json.dumps(tests))])
    assert counts["of them called functions"] == 1
    assert problem.tests.fn_name == problem.public_tests.fn_name == problem.hidden_tests.fn_name == "longest"
    assert problem.public_tests.inputs == ('["a", "b c"]\n2\n',)
    assert problem.hidden_tests.inputs[-1] == f"[{long}]\n-{long}\n"
    assert problem.hidden_tests.outputs == ("[]", '["x", "yy"]', long)
    assert "def longest(self" in problem.question
    assert "`longest`" in problem.instruction


@pytest.mark.parametrize(
    ("question", "cut"),
    [
        ("A\nExample 1:\n\nB", "A"),
        ("A\nSample Input 1\n\nB", "A"),
        ("A\nSample Input 1\n\nB\nExample 1:\n\nC", "A\nSample Input 1\n\nB"),
        ("A Example 1: B", "A Example 1: B"),
    ],
)
def test_paper_mode_takes_everything_as_text_and_cuts_the_statement_at_the_papers_marks(tmp_path, question, cut):
    _, [function] = prepare(tmp_path, [function_row(question_content=question)], paper_mode=True)
    assert function.question == cut
    assert function.tests.fn_name is None
    assert function.public_tests == TestSuite(('["a", "b c"]\n2',), ('["b c"]',))
    assert "reads from standard input" in function.instruction


@pytest.mark.parametrize(
    ("first", "last", "kept"), [(None, None, "123"), (1, None, "23"), (None, 1, "12"), (1, 1, "2")]
)
def test_date_windows_include_their_first_and_last_day(tmp_path, first, last, kept):
    with pytest.raises(UserError, match="end_date 2025-02-01"):
        prepare(tmp_path, [stdin_row()], start_date=date(2025, 2, 2), end_date=date(2025, 2, 1))
    days = {"1": "2025-01-31T23:59:59", "2": "2025-02-01T20:30:00", "3": "2025-02-02"}
    rows = [stdin_row(number, contest_date=day) for number, day in days.items()]
    bounds = {"start_date": first and date(2025, 2, first), "end_date": last and date(2025, 2, last)}
    counts, problems = prepare(tmp_path, rows, **bounds)
    assert "".join(problem.id for problem in problems) == kept
    assert counts["outside the dates"] == 3 - len(kept)
