"""The judge's parts that run no program: feedback, results, settings, wire format, what is remembered."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.judge import ExecResult, JudgeSettings, RememberingJudge, Verdict, VerdictKind
from cobalt.judge.feedback import CUT_MARK, clip, failure_text
from cobalt.judge.wire import JudgeRequest
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import InfrastructureError, UserError


@given(st.text())
def test_clip_keeps_short_fields_and_both_ends_of_long_ones(text):
    clean = "".join(c for c in text if c.isprintable())
    assert clip(clean[:400]) == clean[:400].strip()
    assert clip("a" * 200 + f"b{clean}" * 300 + "c" * 200) == "a" * 200 + CUT_MARK + "c" * 200


def test_feedback_shows_no_control_characters():
    text = clip("\x1b[31mred\x07\r\n\u202ereversed\tx\udcff")
    assert text == "\\x1b[31mred\\x07\n\\u202ereversed\tx\N{REPLACEMENT CHARACTER}"
    text.encode("utf-8")


# `test_fidelity.py` has the layout of wrong answers and runtime errors.
@pytest.mark.parametrize(
    "kind", [kind for kind in VerdictKind if kind not in ("passed", "wrong_answer", "not_run", "no_code")]
)
def test_feedback_of_failures_other_than_wrong_answers_never_shows_the_expected_output(kind):
    text = failure_text(kind, "1\n", "2", "SECRET", "error", "4 s")
    timed_out = kind in (VerdictKind.TIME_LIMIT, VerdictKind.WALL_LIMIT)
    assert text.startswith("Input:\n1\n" + ("TimeoutError: " if timed_out else "Program's Output:\n2\nStderr:\n"))
    assert "SECRET" not in text


def test_result_survives_its_record():
    verdicts = [Verdict(VerdictKind.PASSED, 0.1, 0.2, 0, 5), Verdict(VerdictKind.TIME_LIMIT, 4.1, 5.0)]
    result = ExecResult([True, False], ["", "x"], verdicts, "lines", False, False, queue_seconds=1.0, run_seconds=2.0)
    assert ExecResult.from_record(json.loads(json.dumps(result.to_record()))) == result
    assert not result.isolated and not result.private
    assert (result.pass_rate, result.all_passed, result.first_failure()) == (0.5, False, "x")


def test_recorded_results_without_verdicts_load():
    texts = {
        None: "passed",
        "Input:\n1\nProgram's Output:\n1\nExpected Output:\n2": "wrong_answer",
        "Input:\n1\nTimeoutError: x": "time_limit",
        "Input:\n1\nProgram's Output:\n\nStderr:\nTraceback": "runtime_error",
    }
    record = {"passing": [int(text is None) for text in texts], "feedback": [*texts]}
    result = ExecResult.from_record(record)
    assert [verdict.kind.value for verdict in result.verdicts] == [*texts.values()]
    assert result.first_failure() == [*texts][1] and result.private


@pytest.mark.parametrize(
    "record",
    [{}, {"passing": [True]}, {"passing": True, "feedback": []}, {"passing": [True, True], "feedback": [""]},
     *({"passing": passing, "feedback": ["", ""]} for passing in (["no", "false"], [None, 2])),
     *({"passing": [True], "feedback": [""], "verdicts": verdicts} for verdicts in ([], [{"kind": "fine"}]))],
)  # fmt: skip
def test_a_malformed_result_is_refused(record):
    with pytest.raises(UserError):
        ExecResult.from_record(record)


def test_a_response_without_code_fails_every_test():
    result = ExecResult.no_code(3)
    assert result.passing == [False] * 3
    assert {verdict.kind for verdict in result.verdicts} == {VerdictKind.NO_CODE}
    assert result.pass_rate == 0.0
    assert "code block" in (result.first_failure() or "")
    assert not ExecResult.no_code(0).all_passed


def test_defaults_are_the_papers_and_variables_go_below_arguments(monkeypatch):
    settings = JudgeSettings()
    assert (settings.cpu_seconds, settings.memory_bytes, settings.comparison) == (4.0, 1 << 30, "strip")
    assert settings.wall_limit >= 3 * settings.cpu_seconds
    for name, value in {"CPU_SECONDS": "2", "COMPARISON": "lines", "TOKEN": "of the service"}.items():
        monkeypatch.setenv(f"COBALT_JUDGE_{name}", value)
    settings = JudgeSettings.read({"cpu_seconds": "3"})
    assert (settings.cpu_seconds, settings.comparison) == (3.0, "lines")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"cpu": 1}, "cpu"), ({"cpu_seconds": "fast"}, "cpu_seconds"), ({"comparison": "fuzzy"}, "comparison"),
     ({"cpu_seconds": 9, "wall_seconds": 3}, "wall_seconds"), ({"output_bytes": 1 << 40}, "output_bytes")],
)  # fmt: skip
def test_a_bad_setting_is_named(arguments, name):
    with pytest.raises(UserError, match=name):
        JudgeSettings.read(arguments)


EMPTY = {"inputs": [], "outputs": []}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ([], '"code"'),
        ({"test_cases": EMPTY}, "'code'"),
        ({"code": ""}, "'test_cases'"),
        ({"code": "", "test_cases": "{"}, "JSON"),
        ({"code": "", "test_cases": {"inputs": [1], "outputs": ["1"]}}, "'inputs.0'"),
        ({"code": "", "test_cases": EMPTY, "stop_at_first_failure": 1}, "stop_at_first_failure"),
        ({"code": "", "test_cases": EMPTY, "timeout": 1}, "'timeout'"),
        ({"code": "", "suite": 1}, "'suite'"),
        ({"code": "", "suite": "x", "test_cases": EMPTY}, "'suite'"),
    ],
)
def test_a_malformed_request_is_refused_with_the_field(payload, words):
    with pytest.raises(UserError, match=words):
        JudgeRequest.parse(payload)


# Remembering

SUITE, OTHER = TestSuite(("1",), ("1",)), TestSuite(("1",), ("2",))


class Counting:
    """A judge that is down for the first `failures` programs, fails every test of the others, and counts its calls."""

    def __init__(self, failures=0):
        self.asked, self._failures = [], failures

    async def judge(self, code, suite, *, stop_at_first_failure=False):
        self.asked.append((code, suite, stop_at_first_failure))
        await asyncio.sleep(0)
        if len(self.asked) <= self._failures:
            raise InfrastructureError("down")
        return ExecResult.no_code(len(suite))

    async def describe(self):
        return {"comparison": "strip"}


async def test_each_program_is_judged_once_on_a_suite_even_by_concurrent_callers():
    counting = Counting()
    judge = RememberingJudge(counting)
    results = await asyncio.gather(*(judge.judge("a", TestSuite(("1",), ("1",))) for _ in range(5)))
    assert all(result is results[0] for result in results)
    for code, suite, stop in (("a", OTHER, False), ("b", SUITE, False), ("a", SUITE, True), ("a", SUITE, False)):
        await judge.judge(code, suite, stop_at_first_failure=stop)
    assert counting.asked == [("a", SUITE, False), ("a", OTHER, False), ("b", SUITE, False), ("a", SUITE, True)]
    assert await judge.describe() == {"comparison": "strip"}


async def test_neither_a_failure_of_the_judge_nor_a_cancelled_caller_takes_the_result_from_later_and_other_callers():
    counting = Counting(failures=1)
    judge = RememberingJudge(counting)
    outcomes = await asyncio.gather(*(judge.judge("a", SUITE) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [InfrastructureError] * 3
    assert await judge.judge("a", SUITE) == ExecResult.no_code(1)
    assert len(counting.asked) == 2
    first, second = (asyncio.create_task(judge.judge("b", SUITE)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ExecResult.no_code(1)
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(counting.asked) == 3


async def test_the_least_recently_used_program_is_forgotten_first():
    counting = Counting()
    judge = RememberingJudge(counting, capacity=2)
    for code in "abacab":
        await judge.judge(code, SUITE)
    assert "".join(code for code, _, _ in counting.asked) == "abcb"
