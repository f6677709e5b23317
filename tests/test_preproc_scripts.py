"""The data scripts as a user runs them: help, and refusals before anything slow."""

import pytest
from outside import run_commands_for_imports
from support import ROOT

pytestmark = pytest.mark.slow

# Each script that reads a file and writes one: the flags of a correct command with IN, OUT and FOLDER for them.
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
    "preproc/verl_preproc_multi_turn.py": "--train_file IN --validation_file IN --local_dir FOLDER --model_name a/b",
}

LINKS = ("rows.jsonl", "train.parquet", "train.jsonl")
HEAVY = {"ray", "torch", "vllm", "transformers", "verl", "pyarrow", "datasets", "huggingface_hub", "matplotlib"}
APIS = {"litellm", "openai", "boto3"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """By script: what `--help` gave, and a folder in which its result is an input, with what it said there."""
    folders, commands = {}, [(ROOT, [script, "--help"]) for script in (*FLAGS, "litellm_engine.py")]
    for script, flags in FLAGS.items():
        folder = folders[script] = tmp_path_factory.mktemp("refused")
        # Neither a problem nor ended by a newline: whoever reads or continues it shows.
        (folder / "out.jsonl").write_text("a last line without its newline")
        for link in LINKS:
            (folder / link).symlink_to(folder / "out.jsonl")
        (folder / "in.jsonl").hardlink_to(folder / "out.jsonl")
        paths = {"IN": folder / "in.jsonl", "OUT": folder / "out.jsonl", "FOLDER": folder}
        commands.append((folder, [script, *(str(paths.get(flag, flag)) for flag in flags.split())]))
    ended = run_commands_for_imports(commands, XDG_RUNTIME_DIR="/nonexistent")
    helps = {words[0]: result for (_, words), result in zip(commands, ended, strict=False) if "--help" in words}
    return helps, {script: (folders[script], *ended[len(helps) + i]) for i, script in enumerate(FLAGS)}


@pytest.mark.parametrize("script", [*FLAGS, "litellm_engine.py"])
def test_help_imports_no_heavy_library(ran, script):
    code, text, _, imported = ran[0][script]
    assert code == 0 and "--" in text
    assert not {*imported} & (HEAVY | APIS)


@pytest.mark.parametrize("script", FLAGS)
def test_a_result_in_the_place_of_an_input_is_refused_by_every_script_before_anything_slow(ran, script):
    folder, code, _, said, imported = ran[1][script]
    assert code == 2 and str(folder) in " ".join(said.split()) and "Traceback" not in said
    assert {path.name for path in folder.iterdir()} == {"in.jsonl", "out.jsonl", *LINKS}
    assert (folder / "in.jsonl").read_text() == "a last line without its newline"
    assert not {*imported} & (HEAVY | APIS)
