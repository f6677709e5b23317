"""The data scripts as a user runs them: help, refusals, and the chain from evaluated records to parquet."""

import json

import pytest
from support import trajectory_record, write_lines
from test_scripts import assert_user_error, run

pytestmark = pytest.mark.slow

CUT, ROWS = "preproc/process_multi_turn_taco.py", "preproc/verl_preproc_multi_turn.py"

# Each script that reads a file and writes one: the flags of a correct command with IN and OUT for them.
FLAGS = {
    "run_single_turn_vllm.py": "-i IN -o OUT",
    "run_multi_turn_vllm.py": "-i IN -o OUT",
    "run_single_turn_litellm.py": "-i IN -o OUT",
    "run_multi_turn_litellm.py": "-i IN -o OUT",
    "eval_multi_turn.py": "-i IN -o OUT",
    "extract_turn_level_errors.py": "-d IN -i IN -o OUT",
    "run_llm_judge.py": "-i IN -o OUT",
    "preproc/preproc_taco.py": "-i IN -o FOLDER",
    "preproc/preproc_lcb_test6.py": "-i IN -o OUT",
    "preproc/preproc_mbpp.py": "-i IN -o OUT",
    "preproc/preproc_humaneval.py": "-i IN -o OUT",
    "preproc/preproc_apps.py": "-i IN -o OUT",
    "eval_single_turn.py": "-i IN -o OUT",
    "preproc/run_perturbation.py": "-i IN -o OUT",
    "preproc/process_multi_turn_taco.py": "-i IN -o OUT --model_name nobody/nothing",
    "preproc/verl_preproc_single_turn.py": "--train_file IN --validation_file IN --local_dir FOLDER --model_name a/b",
    "preproc/preproc_codenet.py": "-i IN -o FOLDER",
    "preproc/preproc_judged.py": "-i IN -o FOLDER",
    "preproc/check_groups.py": "-i IN --problems_file IN -o OUT",
    "preproc/verl_preproc_multi_turn.py": "--train_file IN --validation_file IN --local_dir FOLDER --model_name a/b",
}

HEAVY = {"ray", "torch", "vllm", "transformers", "verl", "pyarrow", "datasets", "huggingface_hub", "matplotlib"}
APIS = {"litellm", "openai", "boto3"}


def imported(finished):
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}


@pytest.mark.parametrize("script", [*FLAGS, "litellm_engine.py"])
def test_help_imports_no_heavy_library(script):
    finished = run("-X", "importtime", script, "--help")
    assert finished.returncode == 0
    assert "--" in finished.stdout
    assert not imported(finished) & (HEAVY | APIS)


@pytest.mark.parametrize("script", FLAGS)
def test_a_result_in_the_place_of_an_input_is_refused_by_every_script_before_anything_slow(tmp_path, script):
    # Neither a problem nor ended by a newline: whoever reads or continues it shows.
    results = [tmp_path / name for name in ("out.jsonl", "rows.jsonl", "train.parquet", "train.jsonl")]
    results[0].write_text("a last line without its newline")
    for link in results[1:]:
        link.symlink_to(results[0])
    (tmp_path / "in.jsonl").hardlink_to(results[0])
    places = {"IN": tmp_path / "in.jsonl", "OUT": results[0], "FOLDER": tmp_path}
    finished = run("-X", "importtime", script, *(places.get(flag, flag) for flag in FLAGS[script].split()))
    assert_user_error(finished, str(tmp_path))
    assert (tmp_path / "in.jsonl").read_text() == "a last line without its newline"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", *(path.name for path in results)}
    assert not imported(finished) & (HEAVY | APIS)


def test_a_model_whose_tokenizer_cannot_be_found_by_its_recorded_name_is_asked_for(tmp_path):
    source = write_lines(tmp_path / "e.jsonl", [trajectory_record(0, [[(0, 0)] * 3])])
    arguments = {"stage": "multi_turn", "engine": {"model": "model", "fingerprint": "f"}}
    (tmp_path / "e.run.json").write_text(json.dumps({"arguments": arguments}))
    finished = run(CUT, "-i", source, "-o", tmp_path / "p.jsonl")
    assert_user_error(finished, "--model")
    assert "Qwen" not in finished.stderr


@pytest.mark.parametrize(
    ("engine", "model"), [({"model": "nobody/nothing"}, "nobody/nothing"), ({"replay": "digest"}, "Qwen/Qwen3-8B")]
)
def test_without_a_model_the_tokenizer_that_measures_is_named(tmp_path, engine, model):
    source = write_lines(tmp_path / "e.jsonl", [trajectory_record(0, [[(0, 0)] * 3])])
    (tmp_path / "e.run.json").write_text(json.dumps({"arguments": {"stage": "multi_turn", "engine": engine}}))
    finished = run(
        "preproc/process_multi_turn_taco.py",
        "-i",
        source,
        "-o",
        tmp_path / "p.jsonl",
        HF_HUB_OFFLINE="1",
        HF_HOME=str(tmp_path),
    )
    assert_user_error(finished, f"without --model prompts are measured by the tokenizer of {model}")


@pytest.mark.slow
def test_an_unknown_model_gets_one_sentence(tmp_path):
    source = write_lines(tmp_path / "e.jsonl", [trajectory_record(0, [[(0, 0)] * 3])])
    flags = ["-i", source, "-o", tmp_path / "p.jsonl", "--model_name", "nobody/nothing"]
    finished = run(CUT, *flags, HF_HUB_OFFLINE="1")
    assert_user_error(finished, "nobody/nothing")


@pytest.mark.slow
def test_the_chain_runs_from_evaluated_records_to_parquet(tmp_path, policy):
    samples = [[(0, 0), (1, 1), (2, 2)], [(1, 1), (0, 0), (2, 2)]]
    source = write_lines(tmp_path / "evaluation.jsonl", [trajectory_record("t", samples)])
    finished = run(
        "preproc/process_multi_turn_taco.py", "-i", source, "-o", tmp_path / "train.jsonl", "--model_name", policy
    )
    assert finished.returncode == 0, finished.stderr
    assert "down-sampling" in finished.stdout
    for flags, result, name, other in (
        ([], tmp_path / "train.jsonl", "--train_file", "--validation_file"),
        (["--is_test"], tmp_path / "test.jsonl", "--validation_file", "--train_file"),
    ):
        finished = run(CUT, "-i", source, "-o", result, "--model_name", policy, *flags)
        following = finished.stdout.rpartition("next: ")[2]
        assert f"{name} {result} " in following and f"{other} {result}" not in following
        assert f"--model {policy}" in following
    train = (tmp_path / "train.jsonl").read_text()
    (tmp_path / "dev.jsonl").write_text(train.replace('"problem_id": "t"', '"problem_id": "d"'))
    files = ["--train_file", tmp_path / "train.jsonl", "--validation_file", tmp_path / "dev.jsonl"]
    finished = run(
        "preproc/verl_preproc_multi_turn.py", *files, "--local_dir", tmp_path / "verl", "--model_name", policy
    )
    assert finished.returncode == 0, finished.stderr
    assert "longest prompt" in finished.stdout
    assert (tmp_path / "verl" / "train.parquet").exists()
