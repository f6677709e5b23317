"""Golden vectors for each row of docs/fidelity.md: short inputs, expected values written by hand from the stated rule.

A test is named after its row. Where the authors' code gives another result for the same input, a comment says which.
"""

import asyncio
import json
import re
from dataclasses import replace
from functools import partial

import pytest
from chat_tokenizers import make_tokenizer
from outside import run_commands
from support import ROOT, FakeEngine, FakeJudge, square_problem, trajectory_record, write_lines
from test_hacking import A, B, extract, recorded, result
from test_livecodebench import function_row, stdin_row
from test_selection import settings_of
from test_taco import row

from cobalt.datasets.livecodebench import LiveCodeBenchSettings, livecodebench
from cobalt.datasets.taco import TacoSettings, easiest_indices, read_attempts, taco
from cobalt.engine import Call, GenerationSettings, derive_seed
from cobalt.engine.vllm_engine import render
from cobalt.episode import history_text, load_prompts, program_of
from cobalt.episode.chat_template import template_arguments
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.hacking.categories import CATEGORIES, UNKNOWN, paper_category, parse_category
from cobalt.hacking.classifier import ClassifierSettings
from cobalt.judge import ExecResult, JudgeSettings, LocalJudge, VerdictKind
from cobalt.judge.calling import call_input
from cobalt.judge.comparison import outputs_match
from cobalt.judge.feedback import clip
from cobalt.judge.grading import grade
from cobalt.judge.sandbox.sandbox import Execution
from cobalt.problems.problem import TestSuite
from cobalt.reward import Flaw, token_counter
from cobalt.reward.format import format_reward
from cobalt.rollout.evaluate import SamplesSettings, evaluate_samples, turn_metrics
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.protocols import Outcomes
from cobalt.selection.processing import ProcessingSettings, select_prompts
from cobalt.selection.scores import read_scored
from cobalt.selection.selection import max_variance_subset
from cobalt.selection.verl_rows import RESULTS, MultiTurnRowsSettings, convert_multi_turn, convert_single_turn
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.records import read_records

ROWS = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8"), re.MULTILINE)
RIGHT, WRONG = (2, 2), (0, 0)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_of_the_page_has_a_test(name):
    assert len(ROWS) == len(set(ROWS)) > 30
    assert callable(globals().get(f"test_{name}")) or any(name == row for row, *_ in TABLES), name


async def judged(code, *tests, **settings):
    """The result of a program on (input, output) pairs."""
    async with LocalJudge(JudgeSettings(**({"concurrency": 1} | settings))) as judge:
        return await judge.judge(code, TestSuite(*(tuple(column) for column in zip(*tests, strict=True))))


def graded(output, expected, *, status=0, errors=b""):
    """Verdict and feedback of a run that ended by itself."""
    run = Execution("exit", status, 0.1, 0.1, 1, len(output), output, errors)
    return grade(run, TestSuite(("in",), (expected,)), 0, JudgeSettings())


DEEP = "import sys, functools\nsys.setrecursionlimit(10**7)\n@functools.cache\ndef f(n): return n and f(n - 1) + 1\n"
OPENS = "files = [open('/dev/null') for _ in range(200)]\nprint(len(files))"
BUSY, WAITS = "import time\nwhile time.process_time() < 1: pass", "import time\ntime.sleep({})"
LOUD = "print('x' * 20_000_000)"
CPU = {"cpu_seconds": 0.4, "wall_seconds": 5.0}
COOKIE = "# coding: cp932\n# \u3042\nprint('\u3044')"
READS = [
    ("import io, os; print(io.BytesIO(os.read(0, os.fstat(0).st_size)).readline().decode())", "7\n", "7"),
    ("import os; print(len(os.read(0, 10**7)))", "x" * 200_000, "200000"),
    ("import sys; sys.stdin.read(); sys.stdin.seek(0); print(sys.stdin.read())", "7", "7"),
    ("import mmap; print(mmap.mmap(0, 0, access=mmap.ACCESS_READ)[:1].decode())", "7", "7"),
]
NAMES = [
    ("print(math.gcd(12, 18))", "6"),
    ("from __future__ import annotations\ndef f(x: List[int]) -> Nothing: return gcd(*x)\nprint(f([4, 6]))", "2"),
    ("@cache\ndef f(n): return n and f(n - 1) + 1\nprint(f(5000), pow(2, 5, 7), inf)", "5000 4 inf"),
    ("def f(n): return n and f(n - 1) + 1\nprint(f(5000))", "5000"),
    ("'about'\nprint(__doc__, Counter('aa')['a'])", "about 2"),
]
LISTS = "import os\nprint(os.listdir(), os.listdir('/dev/shm'))\nopen('left', 'w').close()"
DEVICES = "import os, sys\nsys.stderr = open(os.devnull, 'w')\nopen('/dev/urandom', 'rb').read(1)\nprint(1)"
PAPER, PASSED, NOTHING = {"paper": True}, "passed", "nothing"

# Of a row: a program, its tests, the judge's settings, and the verdict on its first test, or that nothing passes.
JUDGED = [
    ("guard", "print(1)\nexit()", [("", "1")], {"paper_guard": True}, NOTHING),
    ("guard", "from __future__ import annotations\nprint(1)", [("", "1")], {"paper_guard": True}, NOTHING),
    ("guard", "import resource\nprint(1)", [("", "1")], {"paper_guard": True}, NOTHING),
    ("guard", "open('/tmp/x', 'w')\nprint(1)", [("", "1")], {"paper_guard": True}, NOTHING),
    ("no_guard", "import resource\nprint(1)\nexit()", [("", "1")], {}, PASSED),
    ("suite_limit", WAITS.format(0.5), [("", "")] * 4, {"suite_seconds": 0.75}, PASSED),  # four at a time
    ("suite_limit", WAITS.format(0.5), [("", "")] * 12, {"suite_seconds": 0.75}, NOTHING),  # three times as long
    ("cpu_time", WAITS.format(0.8), [("", "")], CPU, PASSED),
    ("cpu_time", BUSY, [("", "")], CPU, "time_limit"),
    ("cpu_time", WAITS.format(5), [("", "")], CPU | {"wall_seconds": 0.4}, "wall_limit"),
    ("other_limits", LOUD, [("", "x" * 20_000_000)], {}, "output_limit"),
    ("other_limits", LOUD, [("", "x" * 20_000_000)], PAPER, PASSED),
    ("other_limits", DEEP + "print(f(400_000))", [("", "400000")], {}, "runtime_error"),
    ("other_limits", DEEP + "print(f(400_000))", [("", "400000")], PAPER, PASSED),
    ("other_limits", OPENS, [("", "200")], {}, NOTHING),
    ("other_limits", OPENS, [("", "200")], PAPER, PASSED),
    *(("standard_input", code, [tuple(test)], {}, PASSED) for code, *test in READS),
    *(("standard_input", code, [tuple(test)], {"stdin": "pipe"}, NOTHING) for code, *test in READS),  # there, too
    # A pipe gives the whole input and then its end, also to a program that reads nothing of it.
    *(
        ("standard_input", code.format(len(text)), [(text, f"{len(text)}")] * 2, {"stdin": "pipe"}, PASSED)
        for code in ("import sys; print(len(sys.stdin.read()))", "print({})", "import os; os.close(0); print({})")
        for text in ("", "7\n", "x" * 3_000_000)
    ),
    *(("prelude", code, [("", expected)], {}, PASSED) for code, expected in NAMES),
    *(("prelude", code, [("", expected)], {"prelude": "none"}, "runtime_error") for code, expected in NAMES),
    *(("prelude", code, [("", expected)], PAPER, NOTHING) for code, expected in NAMES),
    ("first_lines", "'about'\nprint(__doc__)", [("", "about")], {}, PASSED),
    ("first_lines", "'about'\nprint(__doc__)", [("", "None")], PAPER, PASSED),
    ("first_lines", "\ufeffprint(1)", [("", "1")], {}, PASSED),
    ("first_lines", "\ufeffprint(1)", [("", "1")], PAPER, "compile_error"),
    ("first_lines", COOKIE, [("", "\u3044")], {}, PASSED),
    ("first_lines", COOKIE, [("", "\u3044")], PAPER, PASSED),
    ("devices", DEVICES, [("", "1")], {}, PASSED),
    ("syntax_warnings", "x = 1\nprint(x is 1)", [("", "True")], PAPER, PASSED),
    ("own_folder", LISTS, [("", "['main.py'] ['main.py']")] * 2, {}, PASSED),
]

WRONG_LINES = ["return", "await x", "break", "def f(): nonlocal y", "f(**{}, *[])", "x = = 1"]
DIVIDED = "    1/0\nZeroDivisionError: division by zero\n"
WARNED = "Stderr:\nmain.py:2: SyntaxWarning: "
TRACED = 'File "main.py", line 2, in <module>\n    raise ValueError(x)\nValueError: 1'

# Of a row: a program that fails, the judge's settings, what its feedback has, and what it has not.
FEEDBACK = [
    ("caret_lines", "1/0", {}, "~^~", DIVIDED),
    ("caret_lines", "1/0", {"traceback_carets": False}, DIVIDED, "^"),
    ("caret_lines", "1/0", PAPER, DIVIDED, "^"),
    *(
        ("source_lines", f"x = 1\n{w}", s, f'"main.py", line 2\n    {w}\n', TRACED)
        for w in WRONG_LINES
        for s in ({}, PAPER)
    ),
    ("syntax_warnings", "x = 1\nif x is 1: 1/0", {}, "ZeroDivisionError", "SyntaxWarning"),
    ("syntax_warnings", "x = 1\nif x is 1: 1/0", PAPER, WARNED, DIVIDED),
    ("traceback_lines", "x = 1\nraise ValueError(x)", {}, TRACED, "line 1"),
]

# Of a row: a response and its program. What the authors' code takes stands behind it where it is another one.
PROGRAMS = [
    ("unclosed_block", "```python\nfirst\n```\n```python\nsecond", "second"),  # there: first
    ("unclosed_block", "```python\nonly", "only"),  # there: none
    ("draft_in_thinking", "<think>```python\ndraft\n```</think>Done.", None),  # there: draft
    ("draft_in_thinking", "<think>```python\ndraft\n```", None),  # there: draft
    ("kinds_of_blocks", '```python title="x"\nx = 1\n```', "x = 1"),
    ("kinds_of_blocks", "~~~python\nx = 1\n~~~", "x = 1"),
    ("kinds_of_blocks", "````\nx = 1\n````", "x = 1"),
    ("kinds_of_blocks", "Code:\n  ```\n  x = 1\n  ```", "x = 1"),
    ("kinds_of_blocks", "```c++\nx = 1\n```", "x = 1"),
    ("fence_in_a_line", "```python\ns = '```'\nprint(s)\n```", "s = '```'\nprint(s)"),  # there: s = '
    ("fence_in_a_line", "```python\nprint(1)```", "print(1)"),
    ("fence_in_a_string", '```python\n"""\n```\nf(1)\n```\n"""\nx = 1\n```', '"""\n```\nf(1)\n```\n"""\nx = 1'),
    ("indented_fence", "```\nx = 1\n    ```\ny = 2\n```", "x = 1\n    ```\ny = 2"),  # there: x = 1
    ("indented_fence", "```\nx = 1\n    ```\nDone.", "x = 1"),
    ("line_ends_of_responses", "```python\r\nx = 1\r\ny = 2\r\n```\r\n", "x = 1\ny = 2"),  # there: none
    ("restarted_program", "```python\nold\n```python\nnew\n```", "new"),  # there: old
    ("closing_fence", "```python\nx = 1\n```Explanation", "x = 1"),
    ("closing_fence", "```python\nx = 1\n``` The program prints `1`.\nMore.", "x = 1"),
    ("closing_fence", "```\nx = 1\n```\nThen `y`.", "x = 1"),
    ("closing_fence", "```python\nx = 1\n  ```.\nMore.", "x = 1"),
    ("end_of_thinking", "<think>t</think>\n```python\nprint('</think>')\n```", "print('</think>')"),
    ("end_of_thinking", "<think>t</think>\n```python\nx = 1\n```\nThe text before </think> is a plan.", "x = 1"),
]

# Of a row: a response, and what later turns see of it with and without --enable_thinking.
HISTORIES = [
    ("history", "<think>t</think>\n\n answer \n", "answer"),
    ("history", "t</think>a</think> b ", "b"),
    ("history", "<think>t</think>" + "ab" * 3001, "ab" * 3000),
    ("truncated_thinking", "<think>\nhm", "<think>\nhm"),
    ("truncated_thinking", "<think>" + "x" * 6000, "<think>" + "x" * 5993),
    ("truncated_thinking", " plain answer\n", " plain answer\n"),
    ("truncated_thinking", "y" * 6001, "y" * 6000),
    # As the engine gives back what R1-Distill wrote after its prompt; there: 6,000 times "a".
    ("template_tag_in_history", "<think>\n" + "a" * 7000, "<think>\n" + "a" * 5992),
    ("end_of_thinking", "<think>t</think>\n```python\nx = 1\n```\nText before </think> is a plan.", "is a plan."),
]

# Of a row: the flaw of a response, and whether thinking is required.
FLAWS = [
    ("closing_fence", "t</think>```python\nx = 1\n```Explanation", True, None),
    # There: none.
    ("other_program", "t</think>\n```python\nx = 1\n```\n  ```\n  y = 2\n  ```", True, Flaw.OTHER_PROGRAM),
    ("required_thinking", "```python\nx = 1\n```", True, Flaw.THINKING),  # there as well, for every model
    ("required_thinking", "```python\nx = 1\n```", False, None),
]

# Of a row: the output of a program, the expected one, and whether they are the same.
COMPARED = [
    ("line_ends", b"1\r\n2\r\n", "1\n2\n", True),
    ("line_ends", b"1\r2", "1\n2\n", True),
    ("line_ends", b"1\r\n\r\n2", "1\n2\n", False),
    ("line_ends_expected", b"1\n2", "1\r\n2", True),  # there: no output passes
]

LONG = "<think>t</think>" + "a" * 6000 + "\n```python\nx = 1\n```"
SPLITS = ["train.parquet", "validation.parquet"]
FOUR = TestSuite(("333", "1", "4444", "22"), ("", "", "", ""))


def metrics_of(*samples):
    """Pass@1 and relative change by turn; `samples` are hidden pass rates."""
    return [(turn.pass_at_1, turn.relative_change) for turn in turn_metrics([Outcomes("", samples)], "here")]


def flaw_of(response, required):
    """The flaw of a response, where thinking is required or not."""
    return format_reward(response, 1.0, len, require_thinking=required).flaw


SHOWN = "Input:\nin\nProgram's Output:\n1\nStderr:\n"

# Of a row: what is computed, and what it must be.
VALUES = [
    (
        "chat_template",
        lambda: [template_arguments(switch) for switch in ("default", "on", "off")],
        [{}, {"enable_thinking": True}, {"enable_thinking": False}],
    ),
    ("chat_template", lambda: GenerationSettings().chat_template_thinking, "default"),
    ("special_tokens", lambda: token_counter()("<|endoftext|>"), 7),
    ("one_entry_per_test", lambda: ExecResult.no_code(3).passing, [False] * 3),  # there: [False]
    ("never_more_than_m", lambda: len(max_variance_subset(list(range(20)), 4)), 4),  # there: up to four more
    # Of a history the second is what hidden tests judge there.
    ("program_in_history", lambda: [program_of(text) for text in (LONG, history_text(LONG, True))], ["x = 1", None]),
    ("control_characters", lambda: clip("\x1b[31mred\ta\nb"), "\\x1b[31mred\ta\nb"),
    # There: the expected output, and nothing about the exit.
    ("silent_exit", lambda: graded(b"1", "2", status=3)[1], f"{SHOWN}The program ended with exit status 3."),
    ("silent_exit", lambda: graded(b"1", "2", status=3, errors=b"why")[1], f"{SHOWN}why"),
    ("bytes_that_are_not_text", lambda: graded(b"\xff", "x")[0].kind, VerdictKind.WRONG_ANSWER),
    ("bytes_that_are_not_text", lambda: "Output:\n\N{REPLACEMENT CHARACTER}\n" in graded(b"\xff", "x")[1], True),
    ("wording", lambda: graded(b"1", "1")[1], ""),
    ("wording", lambda: graded(b"1", "2")[1], "Input:\nin\nProgram's Output:\n1\nExpected Output:\n2"),
    # There: 3/16 of four samples, and an error because they have two turns.
    (
        "samples_and_turns",
        lambda: metrics_of((1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 1.0)),
        [(0.75, 0.0), (0.75, 0.0)],
    ),
    ("relative_change", lambda: metrics_of((0.0, 1.0)), [(0.0, None), (1.0, None)]),
    ("relative_change", lambda: metrics_of((1.0, 0.0), (0.0, 0.0)), [(0.5, 0.0), (0.0, -1.0)]),
    ("public_tests", lambda: easiest_indices(FOUR, 2, None), [1, 3]),
    ("public_tests", lambda: easiest_indices(FOUR, 2, [3, 0, 16, 1]), [0, 2]),
    ("files", lambda: [*RESULTS.values(), MultiTurnRowsSettings.data_source], [*SPLITS, "taco_cobalt"]),
    ("classifier_model", lambda: ClassifierSettings.model_name, "gpt-5-2025-08-07"),
    # There: "[1, [2]] a b", split at blanks.
    ("function_problems", lambda: call_input([[1, [2]], "a b"]), '[1, [2]]\n"a b"\n'),
]

VALUES += [(row, partial(program_of, response), program) for row, response, program in PROGRAMS]
VALUES += [(row, partial(flaw_of, *about), flaw) for row, *about, flaw in FLAWS]
VALUES += [(row, partial(outputs_match, *outputs, JudgeSettings()), same) for row, *outputs, same in COMPARED]
TABLES = [*JUDGED, *FEEDBACK, *HISTORIES, *VALUES]


@pytest.mark.sandbox
@pytest.mark.parametrize(("row", "code", "tests", "settings", "verdict"), JUDGED, ids=[row for row, *_ in JUDGED])
async def test_the_verdict_of_a_row(row, code, tests, settings, verdict):
    result = await judged(code, *tests, **settings)
    if verdict in (PASSED, NOTHING):
        assert result.pass_rate == (verdict == PASSED)
    else:
        assert result.verdicts[0].kind == verdict


@pytest.mark.sandbox
@pytest.mark.parametrize(("row", "code", "settings", "shown", "hidden"), FEEDBACK, ids=[row for row, *_ in FEEDBACK])
async def test_the_feedback_of_a_row(row, code, settings, shown, hidden):
    [feedback] = (await judged(code, ("", ""), **settings)).feedback
    assert shown in f"{feedback}\n" and hidden not in f"{feedback}\n"


@pytest.mark.parametrize(("row", "response", "shown"), HISTORIES, ids=[row for row, *_ in HISTORIES])
def test_the_history_of_a_row(row, response, shown):
    assert history_text(response, True) == shown
    assert history_text(response, False) == response
    cut_off = response.startswith("<think>") and "</think>" not in response
    assert history_text(response, True, "drop") == ("" if cut_off else shown)


@pytest.mark.parametrize(("row", "made", "expected"), VALUES, ids=[row for row, *_ in VALUES])
def test_the_value_of_a_row(row, made, expected):
    assert made() == expected


# --- rules kept to the letter


# The commands of the authors' README and their preprocessing scripts' flags, with files that are not there. What such
# commands write is in test_outside.py.
COMMANDS = [
    "run_single_turn_vllm.py --input_file IN --output_file OUT --max_tokens 6144",
    "run_multi_turn_vllm.py --input_file IN --output_file OUT --max_tokens 6144 --enable_thinking",
    "run_single_turn_litellm.py --model_name gpt-5-mini-2025-08-07 --input_file IN --output_file OUT --openai_api_key k"
    " --aws_access_key_id a --aws_secret_access_key s --aws_region_name us-west-2",
    "run_multi_turn_litellm.py --input_file IN --output_file OUT -n 16 -r medium --openai_api_key k",
    "eval_multi_turn.py --input_file IN --output_file OUT",
    "extract_turn_level_errors.py --data_file IN --input_file IN --output_file OUT",
    "run_llm_judge.py --model_name gpt-5-2025-08-07 --input_file IN --output_file OUT --openai_api_key k -n 1 -r low",
    "preproc/preproc_taco.py --input_file IN --output_dir FOLDER",
    "preproc/run_perturbation.py --input_file IN --output_file OUT",
    "preproc/process_multi_turn_taco.py --input_file IN --output_file OUT --is_test",
    "preproc/process_multi_turn_taco.py --input_file IN --output_file OUT --model_name Qwen/Qwen3-8B",
    "preproc/verl_preproc_single_turn.py --local_dir FOLDER --train_data_file IN --val_data_file IN",
    "preproc/verl_preproc_multi_turn.py --local_dir FOLDER --train_data_file IN --val_data_file IN",
]


@pytest.mark.slow
def test_commands(tmp_path):
    paths = {"IN": tmp_path / "absent.jsonl", "OUT": tmp_path / "out.jsonl", "FOLDER": tmp_path / "verl"}
    commands = [[str(paths.get(word, word)) for word in command.split()] for command in COMMANDS]
    for words, (code, _, said) in zip(commands, run_commands((ROOT, words) for words in commands), strict=True):
        assert code == 2, words
        assert len(said.splitlines()) == 1 and str(paths["IN"]) in said, said


@pytest.mark.slow
def test_preprocessing_commands_without_a_flag_write_where_the_page_says(tmp_path):
    write_lines(tmp_path / "test6.jsonl", [stdin_row("q")])
    commands = [["preproc/preproc_lcb_test6.py"], ["preproc/preproc_taco.py"], ["preproc/preproc_taco.py", "--help"]]
    lcb, taco, described = run_commands((tmp_path, words) for words in commands)
    assert lcb[0] == 0, lcb
    assert [record["id"] for record in read_records(tmp_path / "data" / "lcb_v6.jsonl")] == ["q"]
    # What is asked for is said, then one sentence: never a download without a word, never a traceback.
    assert (taco[0], len(taco[2].splitlines())) == (2, 2), taco
    assert "data/taco)" in " ".join(described[1].replace("│", " ").split())


# --- differences that stay


@pytest.mark.sandbox
async def test_no_suite_limit():
    waits = ("import time\ntime.sleep(3.5)", *[("", "")] * 20)  # 70 s, and 17.5 s with four at a time
    choices = [{}, {"paper": True}, {"suite_seconds": 10}]
    results = await asyncio.gather(*(judged(*waits, concurrency=20, **settings) for settings in choices))
    by_default, paper, short = results
    assert [verdict.kind for verdict in by_default.verdicts[-2:]] == [VerdictKind.NOT_RUN] * 2
    assert (by_default.pass_rate, paper.pass_rate, short.pass_rate) == (18 / 20, 1.0, 0.0)


@pytest.mark.sandbox
async def test_a_prelude_keeps_the_program_s_lines_and_belongs_to_the_suite():
    own = TestSuite(("",), ("7",), prelude="from math import gcd\ndef helper(x):\n    return x + 1\n")
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        assert (await judge.judge("print(helper(6))", own)).all_passed
        failed = await judge.judge("x = 1\nprint(Counter(), helper(x))", own)
        assert 'File "main.py", line 2, in <module>' in failed.feedback[0] and "NameError" in failed.feedback[0]
        shadowed = await judge.judge("def gcd(x): return 7\nhelper = gcd\nprint(helper(1))", own)
        assert shadowed.all_passed
        with pytest.raises(UserError, match="prelude"):
            await judge.judge("print(7)", TestSuite(("",), ("7",), prelude="def"))
        assert (await judge.judge("print(7)", own)).all_passed
    assert TestSuite.parse(own.to_json()) == own


@pytest.mark.parametrize(
    "wrong", [{"comparison": "words"}, {"comparison": 1}, {"prelude": ["x"]}, {"top_level_return": 1}]
)
def test_a_suite_that_asks_for_what_no_judge_does_is_refused(wrong):
    suite = TestSuite(("",), ("1 2\n3",), comparison="lines", top_level_return=True)
    assert TestSuite.parse(suite.to_record()) == suite
    with pytest.raises(UserError, match=next(iter(wrong))):
        TestSuite.parse(suite.to_record() | wrong)


async def test_judge_failure(tmp_path):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0)])
    multi_turn = RepairSettings(problems, tmp_path / "m.jsonl", num_completions=1, turns=1)
    assert (
        await repair(
            multi_turn, FakeEngine("```python\nx\n```"), FakeJudge(lambda *_: InfrastructureError("no answer"))
        )
    ).failed == 1
    assert not multi_turn.output_file.exists()  # there: a record with the failure as feedback


async def prompts_of(tmp_path, policy, *records, name="prompts", **settings):
    """The prompts that are cut from evaluated records."""
    source = write_lines(tmp_path / "evaluation.jsonl", records)
    run = ProcessingSettings(source, tmp_path / f"{name}.jsonl", policy, **settings)
    await select_prompts(run, FakeJudge())
    return read_records(run.output_file)


async def both_selections(tmp_path, policy, record, **settings):
    """The ids of the prompts that are cut from a record by this project's selection, and by the authors'."""
    results = [{"passing": [False] * 4, "feedback": [""] * 4}]
    records = record, trajectory_record("other", [[WRONG] * len(record["raw_responses"])], exec_results=results)
    made = [
        await prompts_of(tmp_path, policy, *records, name=f"{theirs}", authors_selection=theirs, **settings)
        for theirs in (False, True)
    ]
    return [sorted(row["id"] for row in rows if row["problem_id"] == record["id"]) for rows in made]


def of_20_tests(hidden, public, *, single_turn):
    """An evaluated record: `hidden` is how many of 16 hidden tests pass, [sample][turn]; `public` of 4, by turn.

    `single_turn` is whether every sample of the single-turn run passed every test.
    """

    def tests(*numbers):
        return json.dumps({"inputs": [str(i) for i in numbers], "outputs": [str(i) for i in numbers]})

    return trajectory_record(
        0,
        [[WRONG] * len(turns) for turns in hidden],
        test_cases=tests(*range(20)),
        public_test_cases=tests(*range(4)),
        hidden_test_cases=tests(*range(4, 20)),
        public_pass_rates=[[passed / 4] * len(hidden) for passed in public],
        all_pass_rates=[[passed / 16 for passed in turns] for turns in hidden],
        exec_results=[{"passing": [single_turn] * 20, "feedback": [""] * 20}] * len(hidden),
    )


@pytest.mark.slow
async def test_turns_in_scores(tmp_path, policy):
    hidden = [[3, 3, 4, 4, 16, 16, 16, 16, 16]] * 5
    record = of_20_tests(hidden, [0, 0, 0, 0, 4, 4, 4, 4, 4], single_turn=False)
    ours, theirs = await both_selections(tmp_path, policy, record)
    assert ours == ["0/-/0"]  # no program is right in the first three turns
    assert len(theirs) == 13 and {name.split("/")[2] for name in theirs} == {"0", "1", "2", "3"}


@pytest.mark.slow
@pytest.mark.parametrize("public", [0, 4])
async def test_ties_in_test_set(tmp_path, policy, public):
    record = of_20_tests([[15, 15, 16], [1, 2, 2], [3, 4, 3]], [public] * 3, single_turn=False)
    ours, theirs = await both_selections(tmp_path, policy, record, is_test=True)
    assert {name.split("/")[1] for name in ours} == {"-", "0"}  # every score is 1/20
    assert {name.split("/")[1] for name in theirs} == {"-", "1"}


@pytest.mark.slow
async def test_too_easy(tmp_path, policy):
    record = of_20_tests([[0, 16, 16], [16, 16, 16]], [4] * 3, single_turn=True)
    ours, theirs = await both_selections(tmp_path, policy, record)
    assert ours == ["0/-/0", "0/0/1"]
    assert theirs == []
    with pytest.raises(UserError, match="record 0.*--authors_selection.*exec_results"):
        await prompts_of(tmp_path, policy, record | {"exec_results": None}, name="without", authors_selection=True)


def authors_prompt(problem, programs, **fields):
    """A contextual prompt with the fields of the authors' process_multi_turn_taco.py."""
    return {
        "example_id": problem,
        "difficulty": "EASY",
        "conversation": trajectory_record(problem, [[WRONG] * programs])["conversations"][0],
        "prev_best_pass_rate": 0.25 * programs,
        "test_cases": json.dumps({"inputs": ["1"], "outputs": ["1"]}),
    } | fields


@pytest.mark.slow
def test_contextual_prompts_of_the_authors_load(tmp_path, policy):
    from pyarrow import parquet

    train = write_lines(tmp_path / "t.jsonl", [authors_prompt(7, 2), authors_prompt(7, 0), authors_prompt(8, 1)])
    validation = write_lines(tmp_path / "v.jsonl", [authors_prompt(9, 1)])
    settings = settings_of(tmp_path, policy, (train, validation), MultiTurnRowsSettings, 10240)
    convert_multi_turn(settings)
    rows = parquet.read_table(settings.local_dir / "train.parquet").to_pylist()
    extra = [row["extra_info"] for row in rows]
    assert [(item["problem_id"], item["turn"], item["prev_best_pass_rate"]) for item in extra] == [
        ("7", 2, 0.5),
        ("7", 0, 0.0),
        ("8", 1, 0.25),
    ]
    assert len({item["id"] for item in extra}) == 3
    assert rows[0]["prompt"] == authors_prompt(7, 2)["conversation"]
    for bad in ({"conversation": 3}, {"conversation": []}, {"prev_best_pass_rate": None}, {"example_id": None}):
        write_lines(tmp_path / "t.jsonl", [authors_prompt(7, 2, **bad)])
        with pytest.raises(UserError, match=r"t\.jsonl.*'(prompt|prev_best_pass_rate|problem_id)\b"):
            convert_multi_turn(replace(settings, local_dir=tmp_path / "bad"))


async def test_single_turn_results_of_the_authors_load(tmp_path):
    # A suite over its limit, or a response without a program, is one failed entry there.
    results = [
        {"passing": [False], "feedback": ["Error: the suite took too long"]},
        {"passing": [True] * 4, "feedback": ["passed"] * 4},
        {"passing": [False, True, True, False], "feedback": ["no", "", "", "no"]},
    ]
    record = square_problem(0, responses=["a", "b", "c"], exec_results=results)
    source = write_lines(tmp_path / "single.jsonl", [record])
    evaluate_samples(SamplesSettings(source, tmp_path / "evaluation.jsonl"))
    [evaluated] = read_records(tmp_path / "evaluation.jsonl")
    assert evaluated["public_pass_rates"] == [[0.0, 1.0, 0.5]]
    assert evaluated["all_pass_rates"] == [[0.0], [1.0], [0.5]]
    assert read_attempts(source)[0][1] == (1, 2, 2, 1)
    short = square_problem(0, responses=["a"], exec_results=[{"passing": [True], "feedback": [""]}])
    with pytest.raises(UserError, match="exec_results"):
        read_attempts(write_lines(tmp_path / "short.jsonl", [short]))


def test_true_counts(tmp_path):
    tests = json.dumps({"inputs": ["1"] * 6, "outputs": ["1"] * 6})
    record = trajectory_record(0, [[(1, 0), RIGHT]], hidden_test_cases=tests)
    [group] = read_scored(write_lines(tmp_path / "e.jsonl", [record]), 2)
    assert (group.tests, group.trajectories[0].passed) == (8, [1, 8])  # there: (0.5 * 4 + 0 * 4) / 8 of the first


@pytest.mark.slow
async def test_problem_alone(tmp_path, policy):
    long = trajectory_record(1, [[WRONG, WRONG, RIGHT]])
    for conversation in long["conversations"]:
        conversation[1]["content"] = "problem " * 500
    short = trajectory_record(2, [[WRONG, WRONG, RIGHT]])
    prompts = await prompts_of(tmp_path, policy, long, short, max_prompt_tokens=400)
    assert {row["problem_id"] for row in prompts} == {2}  # there: (1, 0) as well


def test_events_by_index(tmp_path):
    # The impossible test's input, 2, is part of a benign one's, 12: by substring there would be one benign test less.
    _, events = extract(tmp_path, recorded((A, result("--++")), (B, result("+-++"))))
    assert [event["benign_tests"] for event in events] == [2]


async def test_taco_solutions(tmp_path):
    source = write_lines(tmp_path / "taco.jsonl", [row(1), row(2, solutions=["print(0)"])])
    await taco(TacoSettings(tmp_path / "out", source, dev_size=0), FakeJudge(lambda code, _: "** 2" in code))
    assert [record["id"] for record in read_records(tmp_path / "out" / "train.jsonl")] == [1]  # there: 1 and 2


def lcb_problem(tmp_path, row, paper_mode):
    source = write_lines(tmp_path / "test6.jsonl", [row])
    output = tmp_path / f"{paper_mode}.jsonl"
    livecodebench(LiveCodeBenchSettings(output, source, paper_mode=paper_mode))
    [problem] = read_records(output)
    return problem


def test_statement_cut(tmp_path):
    row = stdin_row(question_content="Square it.\n\nSample Input 1\n\n2\n")
    assert lcb_problem(tmp_path, row, False)["question"].endswith("Sample Input 1\n\n2")
    assert lcb_problem(tmp_path, row, True)["question"] == "Square it."  # there, too


@pytest.mark.sandbox
async def test_test_order(tmp_path):
    numbers = [10**n for n in range(12)]
    tests = json.dumps({"inputs": [f"{n}" for n in numbers], "outputs": [f"{n * n}" for n in numbers]})

    async def lengths(authors_order):
        source = write_lines(tmp_path / "taco.jsonl", [row(1, input_output=tests)])
        output = tmp_path / f"{authors_order}"
        settings = TacoSettings(output, source, max_tests=8, dev_size=0, authors_order=authors_order)
        async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
            await taco(settings, judge)
        [problem] = read_records(output / "train.jsonl")
        return [len(text) for text in json.loads(problem["test_cases"])["inputs"]]

    assert await lengths(False) == [1, 2, 7, 8, 9, 10, 11, 12]
    assert await lengths(True) == [2, 1, 12, 11, 10, 9, 8, 7]  # the two shortest, then the six longest


def test_function_problems(tmp_path):
    assert json.loads(lcb_problem(tmp_path, function_row(), False)["test_cases"])["fn_name"] == "longest"
    assert "fn_name" not in json.loads(lcb_problem(tmp_path, function_row(), True)["test_cases"])  # there, too


@pytest.mark.slow
def test_one_bos():
    tokenizer = make_tokenizer("llama")  # writes its BOS in the template, and puts one in front where it may
    ids, _ = render(tokenizer, [{"role": "user", "content": "a"}], "default")
    assert ids.count(tokenizer.bos_token_id) == 1


def test_seeds():
    calls = [Call(name, turn, sample) for name in (0, "0") for turn in (0, 1, 2) for sample in (None, 0, 1)]
    seeds = [derive_seed(0, call) for call in calls]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [derive_seed(0, call) for call in calls]
    assert derive_seed(1, calls[0]) != seeds[0]


@pytest.mark.slow
def test_prompt_length(tmp_path, policy):
    short, long = square_problem(0, instruction="a"), square_problem(1, instruction="a b c d e f g h" * 20)
    messages = [{"role": "system", "content": load_prompts("paper").system}, {"role": "user", "content": "a"}]
    [limit] = PromptTokenCounter(policy).count([messages])
    files = [write_lines(tmp_path / "t.jsonl", [short, long]), write_lines(tmp_path / "v.jsonl", [short | {"id": 2}])]
    summary = convert_single_turn(settings_of(tmp_path, policy, files, limit=limit)).summary
    counts = {"prompts read": 2, "dropped: over max_prompt_length": 1, "rows": 1, "problems": 1}
    assert summary["train"] == counts | {"longest prompt, tokens": limit}


HARD, LOGIC, DRIFT, OTHERS = CATEGORIES


@pytest.mark.parametrize(
    ("answer", "ours", "papers"),
    [
        ("Reasons.\n\nFinal Verdict: (1) Hard Coding", HARD, HARD),
        ("Final Verdict:(2)Logic Overfitting.", LOGIC, LOGIC),
        # The last one counts, and thinking does not.
        ("Final Verdict: (1) Hard Coding\nNo: Final Verdict: (2) Logic Overfitting", LOGIC, HARD),
        ("<think>Final Verdict: (1) Hard Coding</think>Final Verdict: (2) Logic Overfitting", LOGIC, HARD),
        ("<think>Final Verdict: (1)", UNKNOWN, UNKNOWN),
        # Number and name disagree.
        ("Final Verdict: (3) Hard Coding", UNKNOWN, DRIFT),
        ("Final Verdict: (1)\nFinal Verdict: (1) Others", UNKNOWN, HARD),
        # Other forms are none there.
        ("Final Verdict: **(3) Semantic Drifting**", DRIFT, UNKNOWN),
        ("### Final Verdict\n\n**(2) Logic Overfitting**.", LOGIC, UNKNOWN),
        ("final verdict: 2", LOGIC, UNKNOWN),
        ("Final Verdict: [1]", HARD, UNKNOWN),
        ("Final Verdict: <(3) Semantic Drifting>", DRIFT, UNKNOWN),
        ("Final Verdict - `Semantic drifting`", DRIFT, UNKNOWN),
        ("Final Verdict: Hard-Coding", HARD, UNKNOWN),
        ("_Final verdict is_ **category 4**", OTHERS, UNKNOWN),
        ("Final Verdict: other", OTHERS, UNKNOWN),
        ("Final Verdict:\u00a0(2)", LOGIC, UNKNOWN),
        # Structured.
        ('{"reasoning": "r", "category": 3}', DRIFT, UNKNOWN),
        ('```json\n{"category": 2}\n```', LOGIC, UNKNOWN),
        ('{"category": "(4) Others"}', OTHERS, UNKNOWN),
        ('{"category": 9}', UNKNOWN, UNKNOWN),
        ('{"category": true}', UNKNOWN, UNKNOWN),
        ('{"reasoning": "Final Verdict: (1)"}', UNKNOWN, UNKNOWN),
        ('{"reasoning": "cut off', UNKNOWN, UNKNOWN),
        # None.
        ("", UNKNOWN, UNKNOWN),
        ("It is hard coding, I would say (1).", UNKNOWN, UNKNOWN),
        ("Final Verdict: (12)", UNKNOWN, UNKNOWN),
        ("Final Verdict: (k) Name", UNKNOWN, UNKNOWN),
    ],
)
def test_classifier_verdicts(answer, ours, papers):
    assert (parse_category(answer), paper_category(answer)) == (ours, papers)
