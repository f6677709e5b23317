"""The Hub: data sets by name give the problems of their files."""

from pathlib import Path

import pytest
from outside import run_commands
from support import ROOT, square_problem, write_lines

from cobalt.problems import hub
from cobalt.problems.problem import load_problems
from cobalt.stage.errors import UserError

PROBLEMS = [square_problem(number) for number in range(5)]
UNREACHABLE = "http://127.0.0.1:1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A local folder with the files of a data set of two splits."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "TACO-Cobalt"
    data.mkdir()
    write_lines(data / "train.jsonl", PROBLEMS[:3])
    write_lines(data / "validation.jsonl", PROBLEMS[3:])
    return data


@pytest.mark.slow
def test_a_split_of_a_data_set_is_read_like_a_file_of_problems(folder):
    file = hub.input_file(Path(f"{folder}:validation"))
    assert [problem.record for problem in load_problems(file)] == PROBLEMS[3:]
    with pytest.raises(UserError, match="splits train, validation"):
        hub.input_file(folder)
    with pytest.raises(UserError, match="no split 'test'"):
        hub.input_file(Path(f"{folder}:test"))


@pytest.mark.parametrize("name", ["problems.jsonl", "data/problems.parquet", "a/b/c", "tests/absent", "name"])
def test_what_is_no_name_of_the_hub_stays_a_path(name):
    assert hub.input_file(Path(name)) == Path(name)


@pytest.mark.slow
def test_without_a_network_a_name_is_refused_or_taken_from_the_cache(tmp_path):
    """In a process of its own: huggingface_hub reads the Hub's address when it is imported."""
    cached = tmp_path / "cobalt" / "hub" / "osunlp--TACO-Cobalt@abc" / "validation.jsonl"
    cached.parent.mkdir(parents=True)
    write_lines(cached, PROBLEMS)
    flags = ["run_single_turn_vllm.py", "-o", str(tmp_path / "o.jsonl"), "-i"]
    outside = {"HF_ENDPOINT": UNREACHABLE, "XDG_CACHE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    names = ["nobody/TACO-Cobalt:validation", "osunlp/TACO-Cobalt:validation"]
    refused, taken = run_commands([(ROOT, [*flags, name]) for name in names], **outside, HF_HUB_OFFLINE="0")
    assert refused[0] == 2 and "nobody/TACO-Cobalt" in refused[2]
    assert taken[0] == 1 and str(cached) in taken[2]  # no engine runs
