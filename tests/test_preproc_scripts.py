"""The data scripts as a user meets them."""

import pytest
from support import trajectory_record, write_lines
from test_scripts import assert_user_error, run

SCRIPTS = [
    "preproc/process_multi_turn_taco.py",
    "preproc/verl_preproc_single_turn.py",
    "preproc/verl_preproc_multi_turn.py",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_light(script):
    finished = run("-X", "importtime", script, "--help")
    assert finished.returncode == 0
    assert "--model_name" in finished.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}
    assert not imported & {"ray", "torch", "vllm", "transformers", "verl", "pyarrow", "datasets"}


@pytest.mark.slow
def test_an_unknown_model_is_one_sentence(tmp_path):
    source = write_lines(tmp_path / "e.jsonl", [trajectory_record(0, [[(0, 0)] * 3])])
    flags = ["-i", source, "-o", tmp_path / "p.jsonl", "--model_name", "nobody/nothing"]
    finished = run(SCRIPTS[0], *flags, HF_HUB_OFFLINE="1")
    assert_user_error(finished, "without a network give the local folder")


@pytest.mark.slow
def test_the_chain_runs_from_evaluated_records_to_parquet(tmp_path, policy):
    samples = [[(0, 0), (1, 1), (2, 2)], [(1, 1), (0, 0), (2, 2)]]
    source = write_lines(tmp_path / "evaluation.jsonl", [trajectory_record("t", samples)])
    finished = run(SCRIPTS[0], "-i", source, "-o", tmp_path / "train.jsonl", "--model_name", policy)
    assert finished.returncode == 0, finished.stderr
    assert "down-sampling" in finished.stdout
    train = (tmp_path / "train.jsonl").read_text()
    (tmp_path / "dev.jsonl").write_text(train.replace('"problem_id": "t"', '"problem_id": "d"'))
    files = ["--train_file", tmp_path / "train.jsonl", "--validation_file", tmp_path / "dev.jsonl"]
    finished = run(SCRIPTS[2], *files, "--local_dir", tmp_path / "verl", "--model_name", policy)
    assert finished.returncode == 0, finished.stderr
    assert "longest prompt" in finished.stdout
    assert (tmp_path / "verl" / "train.parquet").exists()
