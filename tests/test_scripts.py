"""The scripts as a user runs them: help without services, one clear sentence and exit code 2 for each mistake."""

import json
import os
import subprocess
import sys

import pytest
from outside import run_commands
from support import ROOT, square_problem, write_lines

from cobalt.problems.problem import load_problems
from cobalt.stage.errors import UserError

SCRIPTS = ["run_single_turn_vllm.py", "run_multi_turn_vllm.py", "eval_multi_turn.py"]


def run(*arguments, **environment):
    # No test here may find a `cobalt serve` of the user's.
    outside = os.environ | {"XDG_RUNTIME_DIR": "/nonexistent"} | environment
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, env=outside, capture_output=True, text=True, timeout=120
    )


def assert_each_is_refused(commands, names, folder=ROOT):
    """Of commands that run one after the other in one process: each ends as a user's mistake and names these."""
    ended = run_commands(((folder, map(str, words)) for words in commands), XDG_RUNTIME_DIR="/nonexistent")
    for named, (code, _, said) in zip(names, ended, strict=True):
        assert code == 2, (named, said)
        assert all(name in " ".join(said.split()) for name in ([named] if isinstance(named, str) else named)), said
        assert "Traceback" not in said


BAD_FILES = {
    "line 2: field 'question' is missing": json.dumps(square_problem(1)) + '\n{"id": 2}\n',
    "the file holds no problem": "",
    "nested too deeply": '{"id":' + "[" * 100_000,
    "line 1: not valid JSON .*digits": f'{{"id": {"9" * 60_000}}}',
    "line 1: not Unicode text": json.dumps(square_problem(1, question="half a \ud800 pair")),
}


@pytest.mark.parametrize("named", BAD_FILES)
def test_a_bad_problem_file_is_refused_by_line_and_field(tmp_path, named):
    (tmp_path / "p.jsonl").write_text(BAD_FILES[named])
    with pytest.raises(UserError, match=named):
        load_problems(tmp_path / "p.jsonl")


def test_help_of_a_script_imports_neither_ray_nor_torch():
    finished = run("-X", "importtime", "run_multi_turn_vllm.py", "--help")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}
    assert finished.returncode == 0 and not imported & {"ray", "torch", "vllm", "transformers", "verl"}


BAD_FLAGS = {
    "setting 'temperature'": "--temperature -1",
    "setting 'top_p'": "--top_p 1.5",
    "num_completions is 0": "-n 0",
    "concurrency is 0": "--concurrency 0",
    "no prompt set 'none-such'": "--prompts none-such",
    "--limit is 0": "--limit 0",
    "--ids none-such": "--ids 1 none-such",
    "cannot read absent.jsonl": "--replay_file absent.jsonl",
    "no_such_flag": "--no_such_flag",
    "'/dev/null' is not a file": "-o /dev/null",
}


def test_bad_flags_are_named(tmp_path):
    path = write_lines(tmp_path / "p.jsonl", [square_problem(1)])
    words = ["run_single_turn_vllm.py", "-i", path, "-o", tmp_path / "o.jsonl"]
    assert_each_is_refused([[*words, *flags.split()] for flags in BAD_FLAGS.values()], BAD_FLAGS)


def test_a_command_line_that_cannot_be_meant_is_refused_by_what_is_wrong_with_it(tmp_path):
    write_lines(tmp_path / "p.jsonl", [square_problem(1, responses=["a", "b"])])
    write_lines(tmp_path / "own.jsonl", [square_problem(1), square_problem("two", instruction="Mine.")])
    write_lines(tmp_path / "direct.jsonl", [{"seconds": 1.0, "start": 0, "seed": 1, "tests": 5}])
    write_lines(tmp_path / "bad.jsonl", [square_problem(1), {"id": 2}])
    write_lines(tmp_path / "turns.jsonl", [square_problem(1, responses=["a"], finish_reasons=["tired"])])
    single, multi, evaluation = SCRIPTS
    refused = {
        f"{single} --input_file absent.jsonl -o o.jsonl": "absent.jsonl",
        f"{single} --input-file absent.jsonl -o o.jsonl": "absent.jsonl",
        f"{single} -i p.jsonl -o o.jsonl --replay_file p.jsonl -n 3": "-n 2",
        f"{evaluation} -i p.jsonl -o o.jsonl": "run a multi-turn script first",
        f"{evaluation} -i m.jsonl -o o.jsonl --plot x.doc": ".png or .svg",
        f"{single} -i bad.jsonl -o o.jsonl": "line 2: field 'question' is missing",
        f"{multi} -i turns.jsonl -o o.jsonl": "problem 1: field 'finish_reasons.0'",
        # The problem brings a first message, which these prompts would not word.
        f"{single} -i own.jsonl -o o.jsonl --prompts paper": ("own.jsonl", "'two'", "'instruction'", "--prompts"),
        f"{multi} -i own.jsonl -o o.jsonl --prompts program": ("own.jsonl", "'two'", "'instruction'", "--prompts"),
        "tests/long/soak.py direct --tests -5": "--tests",
        "tests/long/soak.py direct --tests 9 --output_dir .": "--seed 1",
        "tests/long/fuzz.py records --examples 0": "--examples",
        "tests/long/faults.py --output_dir /dev/null/x": "/dev/null/x",
        "-m cobalt.services --engine a=1 -- true": "--model",
        "-m cobalt.pocket --output_dir world --demonstrations 10": "demonstrations",
    }
    before = sorted(tmp_path.iterdir())
    assert_each_is_refused(map(str.split, refused), refused.values(), tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_an_evaluated_file_prints_its_table_again_without_a_judge(tmp_path):
    records = [square_problem(1, raw_responses=[["x"], ["y"]])]
    source = write_lines(tmp_path / "m.jsonl", records)
    from cobalt.stage.manifest import open_manifest

    open_manifest(tmp_path / "e.jsonl", {"stage": "evaluation"}, [source])
    write_lines(tmp_path / "e.jsonl", [records[0] | {"all_pass_rates": [[0.0, 1.0]]}])
    plot = tmp_path / "plot.png"
    finished = run("eval_multi_turn.py", "-i", source, "-o", tmp_path / "e.jsonl", "--plot", plot)
    assert finished.returncode == 0, finished.stderr
    assert "n/a" in finished.stdout
    assert "100.0" in finished.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    metrics = json.loads((tmp_path / "e.metrics.json").read_text())
    assert [row["pass_at_1"] for row in metrics["turns"]] == [0.0, 1.0]


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    command = f"{sys.executable} -m cobalt.report --help | true; exit ${{PIPESTATUS[0]}}"
    finished = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in finished.stderr
