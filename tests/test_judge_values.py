"""The judge's parts that run no program: comparison, feedback, results, settings, wire format."""

# Whole programs stand on one line each.
# ruff: noqa: E501

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.judge import ExecResult, JudgeSettings, Verdict, VerdictKind
from cobalt.judge.comparison import outputs_match
from cobalt.judge.feedback import CUT_MARK, clip, failure_text
from cobalt.judge.wire import JudgeRequest
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError

STRIP = JudgeSettings()
LINES = JudgeSettings(comparison="lines")
FLOAT = JudgeSettings(comparison="float")


@pytest.mark.parametrize(
    ("output", "expected", "strip", "lines", "close"),
    [
        (b"1\n", "1", True, True, True),
        (b"\n 1 2 \n\n", "1 2", True, True, True),
        (b"1 \n2\n", "1\n2", False, True, True),
        (b"1  2", "1 2", False, True, True),
        (b"1\n\n2", "1\n2", False, False, False),
        (b"1 2", "1\n2", False, False, False),
        (b"1\n2", "1\n2\n3", False, False, False),
        (b"", "", True, True, True),
        (b"", "1", False, False, False),
        (b"1.0", "1", False, True, True),
        (b"1e3", "1000", False, True, True),
        (b"0.30000000000000004", "0.3", False, False, True),
        (b"0.31", "0.3", False, False, False),
        (b"nan", "nan", True, True, True),
        (b"nan", "1", False, False, False),
        (b"inf", "1e400", False, False, False),
        (b"100000000000000000001", "100000000000000000000", False, False, False),
        (b"100000000000000000001.0", "100000000000000000000", False, False, True),
        (b"YES", "Yes", False, False, False),
        (b"2 1", "1 2", False, False, False),
        (b"\xff", "\ufffd", False, False, False),
        (b"\r\n1\r\n2\r\n", "1\n2", True, True, True),
        (b"\xef\xbb\xbf1", "1", False, False, False),
        ("é".encode(), "é", True, True, True),
        (b"x" * 10, "x" * 9, False, False, False),
    ],
)
def test_each_comparison_rule_gives_its_verdict(output, expected, strip, lines, close):
    assert outputs_match(output, expected, STRIP) is strip
    assert outputs_match(output, expected, LINES) is lines
    assert outputs_match(output, expected, FLOAT) is close


def test_float_tolerance_is_a_setting():
    loose = JudgeSettings(comparison="float", float_absolute=0.1, float_relative=0)
    assert outputs_match(b"0.35", "0.3", loose)
    assert not outputs_match(b"0.45", "0.3", loose)


@given(st.text())
def test_clip_keeps_short_fields_and_bounds_long_ones(text):
    clean = "".join(c for c in text if c.isprintable())
    assert clip(clean[:400]) == clean[:400].strip()
    assert len(clip("ab" * 400)) == 400 + len(CUT_MARK)


def test_clip_keeps_the_first_and_last_200_characters():
    text = "a" * 200 + "b" * 300 + "c" * 200
    assert clip(text) == "a" * 200 + CUT_MARK + "c" * 200


def test_feedback_shows_no_control_characters():
    text = clip("\x1b[31mred\x07\r\n\u202ereversed\tx\udcff")
    assert text == "\\x1b[31mred\\x07\n\\u202ereversed\tx\N{REPLACEMENT CHARACTER}"
    text.encode("utf-8")


def test_feedback_has_the_paper_s_layout():
    assert (
        failure_text(VerdictKind.WRONG_ANSWER, "1\n", "2\n", "3\n", "", "")
        == "Input:\n1\nProgram's Output:\n2\nExpected Output:\n3"
    )
    assert (
        failure_text(VerdictKind.RUNTIME_ERROR, "1\n", "2\n", "3\n", "oops\n", "")
        == "Input:\n1\nProgram's Output:\n2\nStderr:\noops"
    )
    assert failure_text(VerdictKind.TIME_LIMIT, "1\n", "2\n", "3\n", "", "4 s").startswith("Input:\n1\nTimeoutError: ")
    assert failure_text(VerdictKind.WALL_LIMIT, "1\n", "2\n", "3\n", "", "4 s").startswith("Input:\n1\nTimeoutError: ")


@pytest.mark.parametrize(
    "kind", [kind for kind in VerdictKind if kind not in ("passed", "wrong_answer", "not_run", "no_code")]
)
def test_feedback_of_failures_other_than_wrong_answers_never_shows_the_expected_output(kind):
    assert "SECRET" not in failure_text(kind, "1", "2", "SECRET", "error", "1 s")


def test_result_survives_its_record():
    result = ExecResult(
        [True, False],
        ["", "x"],
        [Verdict(VerdictKind.PASSED, 0.1, 0.2, 0, 5), Verdict(VerdictKind.TIME_LIMIT, 4.1, 5.0)],
        "lines",
        isolated=False,
        queue_seconds=1.0,
        run_seconds=2.0,
    )
    assert ExecResult.from_record(json.loads(json.dumps(result.to_record()))) == result
    assert result.pass_rate == 0.5
    assert not result.all_passed
    assert result.first_failure() == "x"


def test_recorded_results_without_verdicts_load():
    result = ExecResult.from_record(
        {
            "passing": [True, False, False, False],
            "feedback": [
                None,
                "Input:\n1\nProgram's Output:\n1\nExpected Output:\n2",
                "Input:\n1\nTimeoutError: x",
                "Input:\n1\nProgram's Output:\n\nStderr:\nTraceback",
            ],
        }
    )
    assert [verdict.kind.value for verdict in result.verdicts] == [
        "passed",
        "wrong_answer",
        "time_limit",
        "runtime_error",
    ]
    assert result.first_failure() == "Input:\n1\nProgram's Output:\n1\nExpected Output:\n2"


@pytest.mark.parametrize(
    "record",
    [{}, {"passing": [True]}, {"passing": True, "feedback": []}, {"passing": [True, True], "feedback": [""]},
     {"passing": [True], "feedback": [""], "verdicts": []}, {"passing": [True], "feedback": [""], "verdicts": [{"kind": "fine"}]}],
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


def test_settings_read_variables_below_arguments():
    environment = {"COBALT_JUDGE_CPU_SECONDS": "2", "COBALT_JUDGE_COMPARISON": "lines", "OTHER": "x"}
    settings = JudgeSettings.from_mapping({"cpu_seconds": "3"}, environment)
    assert (settings.cpu_seconds, settings.comparison) == (3.0, "lines")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"cpu": 1}, "cpu"), ({"cpu_seconds": "fast"}, "cpu_seconds"), ({"comparison": "fuzzy"}, "comparison"),
     ({"cpu_seconds": 9, "wall_seconds": 3}, "wall_seconds"), ({"output_bytes": 1 << 40}, "output_bytes")],
)  # fmt: skip
def test_a_bad_setting_is_named(arguments, name):
    with pytest.raises(UserError, match=name):
        JudgeSettings.from_mapping(arguments)


def test_defaults_are_the_paper_s():
    settings = JudgeSettings()
    assert (settings.cpu_seconds, settings.memory_bytes, settings.comparison) == (4.0, 1 << 30, "strip")
    assert settings.wall_limit >= 3 * settings.cpu_seconds


def test_a_request_survives_its_payload():
    request = JudgeRequest("print(1)", TestSuite(("a",), ("b",)), True)
    assert JudgeRequest.parse(request.to_payload()) == request
    as_text = {"code": "print(1)", "test_cases": request.suite.to_json()}
    assert JudgeRequest.parse(as_text).suite == request.suite


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ([], "JSON object"),
        ({"test_cases": {"inputs": [], "outputs": []}}, "'code'"),
        ({"code": 5, "test_cases": {"inputs": [], "outputs": []}}, "'code'"),
        ({"code": ""}, "'test_cases'"),
        ({"code": "", "test_cases": "{"}, "not valid JSON"),
        ({"code": "", "test_cases": {"inputs": ["1"], "outputs": []}}, "1 inputs but 0 outputs"),
        ({"code": "", "test_cases": {"inputs": [1], "outputs": ["1"]}}, "'inputs.0'"),
        ({"code": "", "test_cases": {"inputs": [], "outputs": []}, "stop_at_first_failure": 1}, "true or false"),
        ({"code": "", "test_cases": {"inputs": [], "outputs": []}, "timeout": 1}, "'timeout'"),
    ],
)
def test_a_malformed_request_is_refused_with_the_field(payload, words):
    with pytest.raises(UserError, match=words):
        JudgeRequest.parse(payload)


def test_importing_the_judge_imports_neither_ray_nor_engines():
    code = "import sys, cobalt.judge; print([m for m in ('ray', 'torch', 'vllm', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
