"""Golden vectors for each row of docs/fidelity.md: short inputs, expected values written by hand from the stated rule.

A test is named after its row. Where the authors' code gives another result for the same input, a comment says which.
"""

import json
import re

import pytest
from support import ROOT, RefusingJudge, square_problem, trajectory_record, write_lines
from test_extraction_of_errors import A, B, extract, recorded, result
from test_scripts import assert_user_error, run
from test_taco import row

from cobalt.contexts.processing import ProcessingSettings, process_trajectories
from cobalt.contexts.selection import max_variance_subset
from cobalt.conversation import history_text, load_prompts, program_of
from cobalt.conversation.chat_template import template_arguments
from cobalt.datasets.taco import TacoSettings, preprocess_taco
from cobalt.datasets.verl_rows import VerlRowsSettings, convert_single_turn
from cobalt.engine import Call, Completion, GenerationSettings, derive_seed
from cobalt.errors import InfrastructureError
from cobalt.hacking.categories import CATEGORIES, UNKNOWN, paper_category, parse_category
from cobalt.judge import ExecResult, JudgeSettings, LocalJudge, Verdict, VerdictKind
from cobalt.judge.calling import call_input
from cobalt.judge.comparison import outputs_match
from cobalt.judge.feedback import clip
from cobalt.judge.grading import grade
from cobalt.judge.sandbox import Execution
from cobalt.problem import TestSuite
from cobalt.records import read_records
from cobalt.reward import Flaw, token_counter
from cobalt.reward.format import format_reward
from cobalt.rollout.evaluate import ProblemScore, average
from cobalt.rollout.multi_turn import MultiTurnSettings, run_multi_turn

ROWS = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8"), re.MULTILINE)
RIGHT, WRONG = (2, 2), (0, 0)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_of_the_page_has_a_test(name):
    assert callable(globals().get(f"test_{name}")), name


def test_no_row_stands_twice():
    assert len(ROWS) == len(set(ROWS)) > 30


async def judged(code, *tests, **settings):
    """The result of a program on (input, output) pairs."""
    async with LocalJudge(JudgeSettings(concurrency=1, **settings)) as judge:
        return await judge.judge(code, TestSuite(*(tuple(column) for column in zip(*tests, strict=True))))


def graded(output, expected, *, status=0, errors=b""):
    """Verdict and feedback of a run that ended by itself."""
    return grade(Execution("exit", status, 0.1, 0.1, 1, len(output), output, errors), "in", expected, JudgeSettings())


# --- rules kept to the letter


def test_chat_template():
    assert template_arguments("default") == {}
    assert template_arguments("on") == {"enable_thinking": True}
    assert template_arguments("off") == {"enable_thinking": False}
    assert GenerationSettings().chat_template_thinking == "default"


@pytest.mark.parametrize(
    ("response", "enabled", "shown"),
    [
        ("<think>t</think>\n\n answer \n", True, "answer"),
        ("t</think>a</think> b ", True, "b"),
        ("<think>t</think>" + "ab" * 3001, True, "ab" * 3000),
        ("<think>t</think>\n\nanswer\n", False, "<think>t</think>\n\nanswer\n"),
        ("x" * 6001, False, "x" * 6001),
    ],
)
def test_history(response, enabled, shown):
    assert history_text(response, enabled) == shown


@pytest.mark.parametrize(
    ("response", "kept", "dropped"),
    [
        ("<think>\nhm", "<think>\nhm", ""),
        ("<think>" + "x" * 6000, "<think>" + "x" * 5993, ""),
        (" plain answer\n", " plain answer\n", " plain answer\n"),
        ("y" * 6001, "y" * 6000, "y" * 6000),
    ],
)
def test_truncated_thinking(response, kept, dropped):
    assert history_text(response, True) == kept
    assert history_text(response, True, "drop") == dropped


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nx = 1\n```Explanation", "x = 1"),
        ("```python\nx = 1\n``` The program prints `1`.\nMore.", "x = 1"),
        ("```\nx = 1\n```\nThen `y`.", "x = 1"),
        ("```python\nx = 1\n  ```.\nMore.", "x = 1"),
    ],
)
def test_closing_fence(response, program):
    assert program_of(response) == program
    if "```python" in response and "  ```" not in response:
        assert format_reward("t</think>" + response, 1.0, len).flaw is None


@pytest.mark.parametrize(("output", "same"), [(b"1\r\n2\r\n", True), (b"1\r2", True), (b"1\r\n\r\n2", False)])
def test_line_ends(output, same):
    assert outputs_match(output, "1\n2\n", JudgeSettings()) is same


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "line", ["exit()", "from __future__ import annotations", "import resource", "open('/tmp/x', 'w')"]
)
async def test_guard(line):
    code = f"{line}\nprint(1)" if line != "exit()" else "print(1)\nexit()"
    assert not (await judged(code, ("", "1"), paper_guard=True)).all_passed


@pytest.mark.sandbox
async def test_suite_limit():
    code, tests = "import time\ntime.sleep(0.5)", [("", "")] * 12
    assert (await judged(code, *tests[:4], suite_seconds=0.75)).pass_rate == 1.0  # half a second, four at a time
    assert (await judged(code, *tests, suite_seconds=0.75)).pass_rate == 0.0  # three times as long


# The commands of the authors' README and their preprocessing scripts' flags, with files that are not there.
COMMANDS = [
    "run_single_turn_vllm.py --input_file IN --output_file OUT --max_tokens 6144",
    "run_multi_turn_vllm.py --input_file IN --output_file OUT --max_tokens 6144 --enable_thinking",
    "run_single_turn_litellm.py --model_name gpt-5-mini-2025-08-07 --input_file IN --output_file OUT --openai_api_key k"
    " --aws_access_key_id a --aws_secret_access_key s --aws_region_name us-west-2",
    "run_multi_turn_litellm.py --input_file IN --output_file OUT -n 16 -r medium --openai_api_key k",
    "eval_multi_turn.py --input_file IN --output_file OUT",
    "extract_turn_level_errors.py --data_file IN --input_file IN --output_file OUT",
    "run_llm_judge.py --model_name gpt-5-2025-08-07 --input_file IN --output_file OUT --openai_api_key k -n 1 -r low",
    "preproc/run_perturbation.py --input_file IN --output_file OUT",
    "preproc/process_multi_turn_taco.py --input_file IN --output_file OUT --is_test",
    "preproc/process_multi_turn_taco.py --input_file IN --output_file OUT --model_name Qwen/Qwen3-8B",
    "preproc/verl_preproc_single_turn.py --local_dir FOLDER --train_data_file IN --val_data_file IN",
    "preproc/verl_preproc_multi_turn.py --local_dir FOLDER --train_data_file IN --val_data_file IN",
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands(tmp_path, command):
    places = {"IN": tmp_path / "absent.jsonl", "OUT": tmp_path / "out.jsonl", "FOLDER": tmp_path / "verl"}
    finished = run(*(places.get(word, word) for word in command.split()))
    assert_user_error(finished, f"cannot read {places['IN']}")


@pytest.mark.slow
def test_preprocessing_commands_without_a_flag_write_where_the_page_says(tmp_path, monkeypatch):
    question = {"question_id": "q", "question_title": "t", "question_content": "Square it.", "platform": "atcoder"}
    question |= {"contest_id": "c", "contest_date": "2025-01-04T00:00:00", "starter_code": "", "difficulty": "easy"}
    tests = json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}])
    write_lines(
        tmp_path / "test6.jsonl",
        [question | {"public_test_cases": tests, "private_test_cases": tests, "metadata": "{}"}],
    )
    monkeypatch.setattr("test_scripts.ROOT", tmp_path)  # the folder in which commands run
    finished = run(ROOT / "preproc" / "preproc_lcb_test6.py", PYTHONPATH=str(ROOT))
    assert finished.returncode == 0, finished.stderr
    assert [record["id"] for record in read_records(tmp_path / "data" / "lcb_v6.jsonl")] == ["q"]
    finished = run(ROOT / "preproc" / "preproc_taco.py", PYTHONPATH=str(ROOT), HF_HUB_OFFLINE="1")
    assert finished.returncode == 2
    # What is asked for is said, then one sentence: never a download without a word, never a traceback.
    assert len(finished.stderr.splitlines()) == 2, finished.stderr
    monkeypatch.undo()
    assert "data/taco)" in " ".join(run("preproc/preproc_taco.py", "--help").stdout.split())


# --- differences that stay


def test_template_tag_in_history():
    # As the engine gives back what R1-Distill wrote after its prompt; there: 6,000 times "a".
    assert history_text("<think>\n" + "a" * 7000, True) == "<think>\n" + "a" * 5992


def test_unclosed_block():
    assert program_of("```python\nfirst\n```\n```python\nsecond") == "second"  # there: first
    assert program_of("```python\nonly") == "only"  # there: none


def test_draft_in_thinking():
    assert program_of("<think>```python\ndraft\n```</think>Done.") is None  # there: draft
    assert program_of("<think>```python\ndraft\n```") is None  # there: draft


@pytest.mark.parametrize(
    "response",
    [
        '```python title="x"\nx = 1\n```',
        "~~~python\nx = 1\n~~~",
        "````\nx = 1\n````",
        "Code:\n  ```\n  x = 1\n  ```",
        "```c++\nx = 1\n```",
    ],
)
def test_kinds_of_blocks(response):
    assert program_of(response) == "x = 1"


def test_fence_in_a_line():
    assert program_of("```python\ns = '```'\nprint(s)\n```") == "s = '```'\nprint(s)"  # there: s = '
    assert program_of("```python\nprint(1)```") == "print(1)"


def test_fence_in_a_string():
    program = '"""\n```\nf(1)\n```\n"""\nx = 1'
    assert program_of(f"```python\n{program}\n```") == program  # there: """


def test_indented_fence():
    assert program_of("```\nx = 1\n    ```\ny = 2\n```") == "x = 1\n    ```\ny = 2"  # there: x = 1
    assert program_of("```\nx = 1\n    ```\nDone.") == "x = 1"


def test_end_of_thinking():
    assert program_of("<think>t</think>\n```python\nprint('</think>')\n```") == "print('</think>')"
    response = "<think>t</think>\n```python\nx = 1\n```\nWhat stands before </think> is a plan."
    assert program_of(response) == "x = 1"
    assert history_text(response, True) == "is a plan."  # there as well


def test_line_ends_of_responses():
    assert program_of("```python\r\nx = 1\r\ny = 2\r\n```\r\n") == "x = 1\ny = 2"  # there: none


def test_restarted_program():
    assert program_of("```python\nold\n```python\nnew\n```") == "new"  # there: old


def test_other_program():
    response = "t</think>\n```python\nx = 1\n```\n  ```\n  y = 2\n  ```"
    assert program_of(response) == "y = 2"
    assert format_reward(response, 1.0, len).flaw is Flaw.OTHER_PROGRAM  # there: no flaw


def test_program_in_history():
    response = "<think>t</think>" + "a" * 6000 + "\n```python\nx = 1\n```"
    assert program_of(history_text(response, True)) is None  # what hidden tests judge there
    assert program_of(response) == "x = 1"


def test_one_entry_per_test():
    nothing = ExecResult.no_code(3)
    assert nothing.passing == [False] * 3  # there: [False]
    assert nothing.pass_rate == 0.0


@pytest.mark.sandbox
async def test_cpu_time():
    slow = "import time\nwhile time.process_time() < 1: pass"
    limits = {"cpu_seconds": 0.4, "wall_seconds": 5.0}
    assert (await judged("import time\ntime.sleep(0.8)", ("", ""), **limits)).all_passed
    assert (await judged(slow, ("", ""), **limits)).verdicts[0].kind is VerdictKind.TIME_LIMIT
    limits["wall_seconds"] = 0.4
    assert (await judged("import time\ntime.sleep(5)", ("", ""), **limits)).verdicts[0].kind is VerdictKind.WALL_LIMIT


def test_no_suite_limit():
    assert JudgeSettings().suite_seconds is None


@pytest.mark.sandbox
async def test_no_guard():
    assert (await judged("import resource\nprint(1)\nexit()", ("", "1"))).all_passed


@pytest.mark.sandbox
async def test_own_folder():
    code = "import os\nprint(os.listdir(), os.listdir('/dev/shm'))\nopen('left', 'w').close()"
    assert (await judged(code, *[("", "['main.py'] ['main.py']")] * 2)).all_passed


@pytest.mark.sandbox
async def test_traceback_lines():
    feedback = (await judged("x = 1\nraise ValueError(x)", ("", ""))).feedback[0]
    assert feedback.endswith('File "main.py", line 2, in <module>\n    raise ValueError(x)\nValueError: 1')


def test_control_characters():
    assert clip("\x1b[31mred\ta\nb") == "\\x1b[31mred\ta\nb"


def test_silent_exit():
    _, feedback = graded(b"out", "expected", status=3)
    assert feedback.endswith("Program's Output:\nout\nStderr:\nThe program ended with exit status 3.")
    assert "expected" not in feedback  # there: the expected output, and nothing about the exit
    _, feedback = graded(b"out", "expected", status=3, errors=b"why")
    assert feedback.endswith("Stderr:\nwhy")


def test_wording(tmp_path):
    assert graded(b"1", "1")[1] == ""
    assert graded(b"1", "2")[1] == "Input:\nin\nProgram's Output:\n1\nExpected Output:\n2"
    for name, text in (("system", "S"), ("first_turn", "{{ question }}"), ("feedback", "Theirs: {{ feedback }}")):
        (tmp_path / f"{name}.jinja").write_text(text)
    assert load_prompts(str(tmp_path)).feedback("x") == "Theirs: x"


def test_line_ends_expected():
    assert outputs_match(b"1\n2", "1\r\n2", JudgeSettings())  # there: no output passes


def test_bytes_that_are_not_text():
    verdict, feedback = graded(b"\xff", "x")
    assert verdict.kind is VerdictKind.WRONG_ANSWER
    assert "Program's Output:\n\N{REPLACEMENT CHARACTER}\n" in feedback


async def test_judge_failure(tmp_path):
    class Failing(RefusingJudge):
        async def judge(self, code, suite, *, stop_at_first_failure=False):
            raise InfrastructureError("no answer")

    class Writing:
        async def generate(self, conversation, settings, call):
            return [Completion(text="```python\nx\n```", finish_reason="stop")] * settings.n

        async def describe(self):
            return {}

    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0)])
    multi_turn = MultiTurnSettings(problems, tmp_path / "m.jsonl", GenerationSettings(n=1), turns=1)
    assert await run_multi_turn(multi_turn, Writing(), Failing()) == 1
    assert not multi_turn.output_file.exists()  # there: a record with the failure as feedback


async def prompts_of(tmp_path, policy, *records, **settings):
    """The prompts that are cut from evaluated records, by problem and turn."""
    source = write_lines(tmp_path / "evaluation.jsonl", records)
    await process_trajectories(
        ProcessingSettings(source, tmp_path / "prompts.jsonl", policy, **settings), RefusingJudge()
    )
    return {(row["problem_id"], row["turn"]): row for row in read_records(tmp_path / "prompts.jsonl")}


@pytest.mark.slow
async def test_true_counts(tmp_path, policy):
    tests = json.dumps({"inputs": ["1"] * 6, "outputs": ["1"] * 6})
    record = trajectory_record(0, [[(1, 0), WRONG, (2, 2)]], hidden_test_cases=tests)
    prompts = await prompts_of(tmp_path, policy, record)
    assert prompts[0, 1]["prev_best_pass_rate"] == 1 / 8  # there: (0 * 4 + 0.5 * 4) / 8


def test_never_more_than_m():
    # Twenty candidates, from which the authors' slice takes up to four too many.
    assert len(max_variance_subset(list(range(20)), 4)) == 4
    assert max_variance_subset([0, 1, 2, 3, 4, 5], 4) == [0, 1, 4, 5]


@pytest.mark.slow
async def test_problem_alone(tmp_path, policy):
    long = trajectory_record(1, [[WRONG, WRONG, RIGHT]])
    for conversation in long["conversations"]:
        conversation[1]["content"] = "problem " * 500
    short = trajectory_record(2, [[WRONG, WRONG, RIGHT]])
    prompts = await prompts_of(tmp_path, policy, long, short, max_prompt_tokens=400)
    assert {problem for problem, _ in prompts} == {2}  # there: (1, 0) as well


async def test_events_by_index(tmp_path):
    # The impossible test's input, 2, is part of a benign one's, 12: by substring there would be one benign test less.
    _, events = await extract(tmp_path, recorded((A, result("--++")), (B, result("+-++"))))
    assert [event["benign_tests"] for event in events] == [2]


async def test_taco_solutions(tmp_path):
    class Accepting(RefusingJudge):
        async def judge(self, code, suite, *, stop_at_first_failure=False):
            if "** 2" not in code:
                return await super().judge(code, suite)
            return ExecResult([True] * len(suite), [""] * len(suite), [Verdict(VerdictKind.PASSED)] * len(suite))

    source = write_lines(tmp_path / "taco.jsonl", [row(1), row(2, solutions=["print(0)"])])
    await preprocess_taco(TacoSettings(tmp_path / "out", source, dev_size=0), Accepting())
    assert [record["id"] for record in read_records(tmp_path / "out" / "train.jsonl")] == [1]  # there: 1 and 2


def test_function_problems():
    assert call_input([[1, [2]], "a b"]) == '[1, [2]]\n"a b"\n'  # there: "[1, [2]] a b", split at blanks


def test_one_bos():
    from cobalt.engine.vllm_service import render

    class Tokenizer:
        """Writes its BOS into the template's text, and puts one in front where it may."""

        def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
            return "^a"

        def encode(self, text, *, add_special_tokens):
            return [ord(character) for character in "^" * add_special_tokens + text]

    assert render(Tokenizer(), [], "default") == ([ord("^"), ord("a")], "")


def test_special_tokens():
    assert token_counter()("<|endoftext|>") > 1


def test_relative_change():
    metrics = average({0: ProblemScore([0.0, 1.0], [0.0, 1.0])}, "here")
    assert [turn.relative_change for turn in metrics] == [None, None]
    metrics = average({0: ProblemScore([0.5, 0.0], [0.5, 0.0])}, "here")
    assert metrics[1].relative_change == -1.0


def test_seeds():
    seeds = [derive_seed(0, Call("p", turn, sample)) for turn in range(3) for sample in range(3)]
    assert seeds == [derive_seed(0, Call("p", turn, sample)) for turn in range(3) for sample in range(3)]
    assert len(set(seeds)) == 9


@pytest.mark.slow
def test_prompt_length(tmp_path, policy):
    train = [square_problem(0), square_problem(1, question="problem " * 3000)]
    files = [write_lines(tmp_path / f"{name}.jsonl", rows) for name, rows in (("t", train), ("v", [square_problem(2)]))]
    summary = convert_single_turn(VerlRowsSettings(*files, tmp_path / "rows", policy, max_prompt_length=2048), "pocket")
    assert summary["train"]["dropped: over max_prompt_length"] == 1
    assert summary["train"]["rows"] == 1


@pytest.mark.slow
def test_files():
    described = " ".join(run("preproc/verl_preproc_single_turn.py", "--help").stdout.split())
    assert "validation.parquet" in described
    assert "taco_cobalt" in described


HARD, LOGIC, DRIFT, OTHERS = CATEGORIES


@pytest.mark.parametrize(
    ("answer", "there", "here"),
    [
        ("Reasons.\n\nFinal Verdict: (1) Hard Coding", HARD, HARD),
        ("Final Verdict:\n(4) Others", OTHERS, OTHERS),
        ("Final Verdict:(2)Logic Overfitting.", LOGIC, LOGIC),
        ("Final Verdict: (1) Hard Coding\nNo: Final Verdict: (2) Logic Overfitting", HARD, LOGIC),
        ("<think>Final Verdict: (1) Hard Coding</think>Final Verdict: (2) Logic Overfitting", HARD, LOGIC),
        ("Final Verdict: (3) Hard Coding", DRIFT, UNKNOWN),
        ("**Final Verdict: (3) Semantic Drifting**", DRIFT, DRIFT),
        ("Final Verdict: **(3) Semantic Drifting**", UNKNOWN, DRIFT),
        ("**Final Verdict:** (3) Semantic Drifting", UNKNOWN, DRIFT),
        ("final verdict: (3) Semantic Drifting", UNKNOWN, DRIFT),
        ("Final Verdict: 3", UNKNOWN, DRIFT),
        ("Final Verdict: (3)", UNKNOWN, DRIFT),
        ("Final Verdict: Semantic Drifting", UNKNOWN, DRIFT),
        ('{"reasoning": "r", "category": 3}', UNKNOWN, DRIFT),
        ("Final Verdict: (5) Other", UNKNOWN, UNKNOWN),
        ("", UNKNOWN, UNKNOWN),
    ],
)
def test_classifier_verdicts(answer, there, here):
    assert (paper_category(answer), parse_category(answer)) == (there, here)


@pytest.mark.slow
def test_classifier_model():
    assert "gpt-5-2025-08-07" in run("run_llm_judge.py", "--help").stdout
