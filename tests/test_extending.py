"""The code of docs/extending.md, placed as the page says: each example in use."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from support import ROOT, write_lines

PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = dict(re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def contest(number):
    tests = {"inputs": [f"{number}\n", "0\n"], "outputs": [f"{number * number}\n", "0\n"]}
    return {"name": f"p{number}", "statement": "Print the square of a number.", "examples": tests, "secret": tests}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of this checkout with the page's files in their places."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("cobalt", "verl", "preproc"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, code in BLOCKS.items():
        path = folder / name
        # The list of agent loops gains an entry; all other files are new.
        assert path.exists() == (name == "verl/cobalt_verl/config/agent_loops.yaml")
        path.write_text((path.read_text() if path.exists() else "") + code)
    return folder


def in_checkout(checkout, *arguments, **environment):
    variables = os.environ | {"PYTHONPATH": f"{checkout}:{checkout / 'verl'}"} | environment
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, timeout=600)


PIECES = ROOT / "tests" / "data" / "extending_pieces.py"
"""Uses each example, all in one process: importing veRL takes longer than they do."""


@pytest.fixture(scope="module")
def said(checkout, policy):
    """Result of each piece, or its traceback."""
    chosen = {"VERL_USE_EXTERNAL_MODULES": "cobalt_verl.plugin", "VERL_PLATFORM": "cpu", "POLICY": policy}
    finished = in_checkout(checkout, PIECES, **chosen)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("choices", [["median_baseline", "second_chance", 8, 0.4, length] for length in (1024, 2048)]),
        ("estimator", [[0.5] * 3, [-0.5, -0.5, 0], [-1.5, 0, 0], [0] * 3, [0.5, 0, 0.5]]),
        ("reward", [{"score": 1, "acc": 1}, {"score": 0.5, "acc": 0}, {"score": -1, "acc": 0}]),
        ("judge", [[True, False], [False, True], ["passed", "wrong_answer"], {"judge": "words"}]),
    ],
)
def test_the_pages_pieces_are_found_and_called_by_verl_and_do_what_the_page_says(said, piece, expected):
    assert said[piece] == expected


@pytest.mark.slow
def test_the_pages_agent_loop_asks_again_only_where_there_is_no_program(said):
    once, twice = said["loop"]
    assert len(once[0]) == len(once[1]) == 1
    assert [len(part) for part in twice] == [2, 2, 2] and all(twice[2])
    assert twice[0][1][0].startswith(twice[0][0][0]) and "no program" in twice[0][1][0]
    assert "print(1)" in twice[1][1] and twice[0][0][1] == twice[0][1][1] == once[0][0][1]


def convert(checkout, folder, name, rows):
    """Convert raw rows of the page's data set; the exit code, and what was said."""
    source = write_lines(folder / f"{name}_raw.jsonl", rows)
    words = ("-m", "cobalt.stage", "cobalt.datasets.contest:contest", "-i", source, "-o", folder / f"{name}.jsonl")
    finished = in_checkout(checkout, *words)
    return finished.returncode, finished.stderr.splitlines()


def write_contest(checkout, folder, model):
    """The page's data set from its raw rows to Parquet; also for tests/long."""
    for name, numbers in (("train", range(16)), ("validation", range(16, 20))):
        assert convert(checkout, folder, name, map(contest, numbers))[0] == 0
    files = ["--train_file", folder / "train.jsonl", "--validation_file", folder / "validation.jsonl"]
    files += ["--local_dir", folder / "rows", "--model_name", model, "--prompts", "pocket", "--data_source", "contest"]
    in_checkout(checkout, "preproc/verl_preproc_single_turn.py", *files).check_returncode()
    return folder / "rows"


@pytest.mark.slow
def test_the_pages_data_set_becomes_problems_and_training_rows(checkout, policy, tmp_path):
    from pyarrow import parquet

    table = parquet.read_table(write_contest(checkout, tmp_path, policy) / "train.parquet").to_pylist()
    assert len(table) == 16 and table[0]["data_source"] == "contest"
    assert json.loads(table[3]["reward_model"]["ground_truth"])["outputs"] == ["9\n", "0\n"] * 2
    code, said = convert(checkout, tmp_path, "bad", [contest(1), contest(2) | {"secret": None}])
    assert (code, len(said)) == (2, 1) and "line 2" in said[0]
