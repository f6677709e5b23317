"""The outside of the project is what `tests/data/outside` says: flags, variables, routes, results and manifests.

`python tests/outside.py --write` renews the first three; its page says when that is right. The README of that folder
says how each stage is covered.
"""

import json
import os
import platform
import re
import shutil
import zipfile
from functools import cache
from pathlib import Path

import outside
import pytest
import yaml
from provider import answer, serve
from pyarrow import parquet
from support import needs_api

pytestmark = pytest.mark.slow

RECORDED_RUN = outside.ROOT / "tests/data/recorded_run"
"""Has the inputs of the stages after an evaluation, which the stages' own inputs would make twice."""
OLD = outside.DATA / "stages"

REPLAY = "--prompts pocket --concurrency 1 --max_tokens 64 -n 2 --replay_file answers.jsonl"
TACO = "preproc/preproc_taco.py -i taco.jsonl --dev_size 1 -o taco"
GROUPS = "-o groups --group_size 2 --validation_share 0.4 --seed 3"
ROWS = "--model policy --max_prompt_length 4000 -o rows"

STAGES = {
    "single_turn": (f"run_single_turn_vllm.py -i problems.jsonl -o single_turn.jsonl {REPLAY}", "--temperature 0.5"),
    "multi_turn": (
        f"run_multi_turn_vllm.py -i problems.jsonl -o multi_turn.jsonl --turns 2 {REPLAY}", "--enable_thinking",
    ),
    "evaluation": (
        "eval_multi_turn.py -i of_multi_turn.jsonl -o evaluation.jsonl --concurrency 1",
        "-i run/multi_turn_perturbed.jsonl",
    ),
    "single_turn_evaluation": ("eval_single_turn.py -i of_single_turn.jsonl -o evaluation.jsonl", "-i fewer.jsonl"),
    "taco_rows": (TACO, "--max_solutions 1"),
    "taco_split": (TACO, "--public_tests 3"),
    "apps": ("preproc/preproc_apps.py -i apps.jsonl -o problems_of_apps.jsonl", "--max_solutions 1"),
    "humaneval": ("preproc/preproc_humaneval.py -i humaneval.jsonl -o problems_of_humaneval.jsonl", "--prompts pocket"),
    "mbpp": ("preproc/preproc_mbpp.py -i mbpp.jsonl -o problems_of_mbpp.jsonl", "--solutions"),
    "livecodebench": ("preproc/preproc_lcb_test6.py -i test6.jsonl -o problems_of_lcb.jsonl", "--paper_mode"),
    "groups of CodeNet": (f"preproc/preproc_codenet.py -i codenet {GROUPS}", "--max_accepted 1"),
    "groups of judged programs": (f"preproc/preproc_judged.py -i judged.jsonl {GROUPS}", "--max_accepted 1"),
    "perturbation": ("preproc/run_perturbation.py -i problems.jsonl -o perturbed.jsonl", "--seed 1"),
    "select": (
        "preproc/process_multi_turn_taco.py -i run/evaluation.jsonl -o prompts.jsonl --model policy --prompts pocket",
        "--seed 1",
    ),
    "rows of problems": (
        "preproc/verl_preproc_single_turn.py --train_file problems.jsonl --validation_file validation.jsonl"
        f" --prompts pocket {ROWS}",
        "--data_source other",
    ),
    "rows of prompts": (
        "preproc/verl_preproc_multi_turn.py --train_file run/prompts.jsonl --validation_file run/test_prompts.jsonl"
        f" {ROWS}",
        "--data_source other",
    ),
    "extraction": (
        "extract_turn_level_errors.py -d run/problems.jsonl -i run/evaluation_perturbed.jsonl -o events.jsonl",
        "-i run/multi_turn_perturbed.jsonl",
    ),
    "classifier": (
        "run_llm_judge.py -i run/events.jsonl -o classified.jsonl --model gpt-5-mini-2025-08-07 --concurrency 1",
        "--paper_verdicts",
    ),
}  # fmt: skip
"""By its name, a command, run in a folder with the inputs, and words for another setting that decides its results."""
EACH = ("single_turn", "multi_turn", "evaluation", "taco_rows", "apps", "perturbation", "classifier")
"""Those whose old run was killed between records; the others' as the whole result would have appeared."""
_METRICS = ("evaluation.jsonl", "evaluation.metrics.json")
_SPLITS = ("groups/train.jsonl", "groups/validation.jsonl", "groups/problems.jsonl")
_PARQUET = ("rows/train.parquet", "rows/validation.parquet")
SEVERAL = {
    **{"evaluation": _METRICS, "single_turn_evaluation": _METRICS, "taco_rows": ("taco/rows.jsonl",)},
    **{"taco_split": ("taco/train.jsonl", "taco/dev.jsonl"), "groups of CodeNet": _SPLITS},
    **{"groups of judged programs": _SPLITS, "rows of problems": _PARQUET, "rows of prompts": _PARQUET},
    "classifier": ("classified.calls.jsonl", "classified.jsonl"),
}
"""Files that these write besides manifests; the others write the value of `-o`."""
ASKS_A_PROVIDER = "classifier"
VERDICTS = ("(1) Hard Coding", "(2) Logic Overfitting", "(3) Semantic Drifting", "(4) Others")

CASES = {"half": ("half", False), "same": ("whole", False), "changed": ("whole", True)}
"""Of a stage's command: what lies in its folder, and whether a setting differs."""

MEASURED = ("cpu_seconds", "wall_seconds", "peak_memory_bytes", "queue_seconds", "run_seconds", "marked")
"""Fields that differ from run to run, and those that the tests add."""


def recorded(name):
    return json.loads((outside.DATA / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def seen():
    return outside.seen()


@pytest.mark.parametrize("kind", ["flags", "environment", "routes"])
def test_flags_with_their_defaults_variables_settings_and_routes_are_those_that_there_were(kind, seen):
    assert seen[kind] == recorded(kind)


def test_each_variable_that_the_documents_name_is_read():
    environment = recorded("environment")
    assert set(environment["documented"]) <= outside.read_by_code(environment["settings"])


# --- stages


def slug(stage):
    """The stage's folder in `stages`."""
    return stage.replace(" ", "_")


def results(stage):
    words = STAGES[stage][0].split()
    return SEVERAL.get(stage) or (words[words.index("-o") + 1],)


def workplace(folder):
    """Make a folder with the inputs, to which results of the first stages belong; what a command writes is new."""
    shutil.copytree(outside.DATA / "inputs", folder)
    shutil.copytree(RECORDED_RUN, folder / "run")
    for name in ("single_turn", "multi_turn"):
        shutil.copyfile(OLD / name / "whole" / f"{name}.jsonl", folder / f"of_{name}.jsonl")
    return folder


def of_this_machine(manifest):
    """The text of a manifest with the Python of this machine, which it has because programs run by it."""
    return re.sub(r'"python": "[\d.]+"', f'"python": "{platform.python_version()}"', manifest)


def put(results, folder):
    """Copy results and manifests into a folder, as old files."""
    for source in filter(Path.is_file, results.rglob("*")):
        target = folder / source.relative_to(results)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        if target.name.endswith(".run.json"):
            target.write_text(of_this_machine(source.read_text()))
        os.utime(target, ns=(0, 0))


def mark_first(result):
    """Give the first record a field of its own, which it loses if it is made again."""
    first, *others = result.read_text(encoding="utf-8").splitlines(keepends=True)
    result.write_text(json.dumps(json.loads(first) | {"marked": True}) + "\n" + "".join(others), encoding="utf-8")


def start(stage, case, folder):
    """A folder in which a stage's command is to run, and the command."""
    state, extra = CASES[case]
    put(OLD / slug(stage) / state, workplace(folder))
    if case == "half" and stage in EACH:
        mark_first(folder / results(stage)[0])
    command, changed = STAGES[stage]
    return folder, [*command.split(), *(changed.split() if extra else ())]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Exit code, output and folder of a stage's command by case; those of a kind run in one process."""

    @cache
    def run_those_with(provider):  # so that a machine without its package can run the others
        keys = [(stage, case) for stage in STAGES if (stage == ASKS_A_PROVIDER) is provider for case in CASES]
        commands = [start(stage, case, tmp_path_factory.mktemp(slug(stage)) / case) for stage, case in keys]
        # The verdict depends on the question alone.
        with serve(lambda r: answer(f"Final Verdict: {VERDICTS[len(json.dumps(r['body'])) % 4]}")) as asked:
            urls = dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), asked.url)
            ended = outside.run_commands(commands, OPENAI_API_KEY="sk-of-nobody", **urls)
        whole = zip(keys, ended, commands, strict=True)
        return {key: (code, said, folder) for key, (code, _, said), (folder, _) in whole}

    return lambda stage: {case: run_those_with(stage == ASKS_A_PROVIDER)[stage, case] for case in CASES}


each_stage = pytest.mark.parametrize(
    "stage",
    [
        pytest.param(name, id=slug(name), marks=[pytest.mark.sandbox, *[needs_api] * (name == ASKS_A_PROVIDER)])
        for name in STAGES
    ],
)


def content(path):
    """The records of a file without what is measured, or its bytes."""
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
        return table.schema.to_string(), table.to_pylist()
    if path.suffix == ".jsonl":
        return [without_measured(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return path.read_bytes()


def without_measured(value):
    if isinstance(value, dict):
        return [(name, without_measured(item)) for name, item in value.items() if name not in MEASURED]
    return [without_measured(item) for item in value] if isinstance(value, list) else value


def made_from(path):
    manifest = json.loads(of_this_machine(path.read_text(encoding="utf-8")))
    summary = counted(manifest.get("summary") or {})
    return {name: manifest.get(name) for name in ("arguments", "inputs", "sources")} | {"summary": summary}


def counted(summary):
    """A summary without counts of nothing, and without the digest of CodeNet's data, which is another one by now."""
    counts = {name: item for name, item in summary.items() if item and not isinstance(item, str)}
    return {name: counted(item) if isinstance(item, dict) else item for name, item in counts.items()}


@each_stage
def test_what_the_recorded_commit_left_half_done_becomes_the_result_of_a_run_without_a_break(stage, ran):
    (code, said, half), old = ran(stage)["half"], OLD / slug(stage) / "whole"
    assert code == 0, said
    for name in results(stage):
        assert content(half / name) == content(old / name), name
    assert not list(half.rglob("*.part"))
    if stage in EACH:  # what was finished is not made again
        marked = [json.loads(line) for line in (half / results(stage)[0]).read_text("utf-8").splitlines()]
        assert sum(record.get("marked", False) for record in marked) == 1 < len(marked)


@each_stage
def test_the_manifest_of_a_result_says_what_it_said(stage, ran):
    half, again, old = ran(stage)["half"][2], ran(stage)["same"][2], OLD / slug(stage) / "whole"
    # The record that is marked changes what is made of the result.
    own = {Path(name).with_suffix(".run.json") for name in results(stage)}
    manifests = [path.relative_to(old) for path in old.rglob("*.run.json")]
    manifests = [path for path in manifests if path in own or stage not in EACH]
    assert manifests
    for name in manifests:
        assert made_from(half / name) == made_from(again / name) == made_from(old / name), name


@each_stage
def test_a_finished_result_is_kept_written_again_or_refused_as_it_was(stage, ran):
    for case in ("same", "changed"):
        code, _, folder = ran(stage)[case]
        written = [name for name in results(stage) if (p := folder / name).exists() and p.stat().st_mtime_ns != 0]
        assert {"code": code, "written": written} == recorded("outcomes")[stage][case]
    for name in results(stage):
        assert content(ran(stage)["same"][2] / name) == content(OLD / slug(stage) / "whole" / name), name


@pytest.mark.sandbox
def test_contextual_prompts_with_perturbed_copies_and_those_for_evaluation_are_the_recorded_ones(tmp_path):
    folder = workplace(tmp_path / "recorded")
    words = "preproc/process_multi_turn_taco.py -i run/evaluation.jsonl --model policy --prompts pocket"
    made = {"prompts.jsonl": "", "test_prompts.jsonl": "--is_test --num_turns 2"}
    outside.run_commands((folder, f"{words} --perturbed_ratio 0.5 -o {n} {more}".split()) for n, more in made.items())
    for name in made:
        assert (folder / name).read_bytes() == (folder / "run" / name).read_bytes()


# --- training

TRAINING = (
    "-m cobalt.training --data_dir rows --model model -o run data.train_batch_size=2 actor_rollout_ref.rollout.n=2"
    " actor_rollout_ref.actor.ppo_mini_batch_size=2 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
    " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"
    " actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4"
    " data.max_prompt_length=128 data.max_response_length=24 trainer.save_freq=1 trainer.test_freq=1"
    " trainer.total_epochs=2 +actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=16"
)
"""Command that trained `training/run`; its last setting was a default then."""


def put_training(folder):
    """Make a folder with a training run, its rows and its model, whose file of weights is empty; its manifest.

    The manifest of a run has absolute paths. CHECKOUT and FOLDER stand for those of the machine that wrote it.
    """
    shutil.copytree(outside.DATA / "training", folder)
    shutil.copytree(OLD / "rows_of_problems/whole/rows", folder / "rows")
    shutil.copytree(outside.DATA / "inputs/policy", folder / "model", dirs_exist_ok=True)
    (folder / "model/model.safetensors").touch()
    for path in folder.rglob("*.pt"):
        zipfile.ZipFile(path, "w").close()  # what is looked at is whether the archive is whole
    manifest = folder / "run/metrics.run.json"
    text = manifest.read_text().replace("CHECKOUT", str(outside.ROOT)).replace("FOLDER", str(folder.resolve()))
    manifest.write_text(text)
    return manifest


def test_a_training_run_goes_on_from_its_last_checkpoint_and_with_another_setting_is_refused(tmp_path):
    """No Ray answers, so nothing trains."""
    same, changed = (put_training(tmp_path / name) for name in ("same", "changed"))
    before, run = changed.read_text(), same.parent
    commands = [(run.parent, TRAINING.split())]
    commands.append((changed.parent.parent, [*TRAINING.split(), "actor_rollout_ref.actor.optim.lr=0.5"]))
    (_, _, said), (code, _, refused) = outside.run_commands(commands, RAY_ADDRESS="127.0.0.1:1")
    assert (run / "config.yaml").exists(), said
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert Path(config["trainer"]["resume_from_path"]) == run / "checkpoints/global_step_2"
    assert (run / "metrics.jsonl").read_bytes() == (outside.DATA / "training/run/metrics.jsonl").read_bytes()
    assert len(json.loads(same.read_text())["resumed"]) == 1
    assert code == 2 and "actor_rollout_ref.actor.optim.lr" in refused
    assert not changed.with_name("config.yaml").exists() and changed.read_text() == before
