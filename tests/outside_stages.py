"""The stages, as commands on the small inputs of `tests/data/outside`, and what they left there long ago; no tests."""

import json
import os
import platform
import re
import shutil
import zipfile
from dataclasses import dataclass

import outside
from provider import answer, serve

RECORDED_RUN = outside.ROOT / "tests/data/recorded_run"
"""Has the inputs of the stages after an evaluation, which the stages' own inputs would make twice."""

_NAME_AND_KEY = {"OPENAI_API_KEY": "sk-of-nobody"}
_VERDICTS = ("(1) Hard Coding", "(2) Logic Overfitting", "(3) Semantic Drifting", "(4) Others")


@dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
        name: As in its manifest, with the converter's name where several share it.
        command: Words, run in a folder with the inputs.
        changed: Words to add for another setting that decides its results.
        kept: Records after which the run was killed; None: a whole result, killed as it would have appeared.
        several: What it writes besides manifests, where that is not its `-o` alone.
        api: Whether it asks a provider's model.
    """

    name: str
    command: str
    changed: str
    kept: int | None = None
    several: tuple[str, ...] = ()
    api: bool = False

    @property
    def results(self):
        """What it writes besides manifests."""
        words = self.command.split()
        return self.several or (words[words.index("-o") + 1],)


_REPLAY = "--prompts pocket --concurrency 1 --max_tokens 64 -n 2 --replay_file answers.jsonl"
_TACO = "preproc/preproc_taco.py -i taco.jsonl --dev_size 1"
_GROUPS = "--group_size 2 --validation_share 0.4 --seed 3"
_POLICY = "--model policy --max_prompt_length 4000"

_METRICS = ("evaluation.jsonl", "evaluation.metrics.json")
_SPLITS = ("groups/train.jsonl", "groups/validation.jsonl", "groups/problems.jsonl")
_ROWS = ("rows/train.parquet", "rows/validation.parquet")

STAGES = (
    Stage(
        "single_turn",
        f"run_single_turn_vllm.py -i problems.jsonl -o single_turn.jsonl {_REPLAY}",
        "--temperature 0.5",
        kept=2,
    ),
    Stage(
        "multi_turn",
        f"run_multi_turn_vllm.py -i problems.jsonl -o multi_turn.jsonl --turns 2 {_REPLAY}",
        "--enable_thinking",
        kept=2,
    ),
    Stage(
        "evaluation",
        "eval_multi_turn.py -i of_multi_turn.jsonl -o evaluation.jsonl --concurrency 1",
        "-i run/multi_turn_perturbed.jsonl",
        kept=1,
        several=_METRICS,
    ),
    Stage(
        "single_turn_evaluation",
        "eval_single_turn.py -i of_single_turn.jsonl -o evaluation.jsonl",
        "-i fewer.jsonl",
        several=_METRICS,
    ),
    Stage("taco_rows", f"{_TACO} -o taco", "--max_solutions 1", kept=3, several=("taco/rows.jsonl",)),
    Stage("taco_split", f"{_TACO} -o taco", "--public_tests 3", several=("taco/train.jsonl", "taco/dev.jsonl")),
    Stage("apps", "preproc/preproc_apps.py -i apps.jsonl -o problems_of_apps.jsonl", "--max_solutions 1", kept=2),
    Stage(
        "humaneval",
        "preproc/preproc_humaneval.py -i humaneval.jsonl -o problems_of_humaneval.jsonl",
        "--prompts pocket",
    ),
    Stage("mbpp", "preproc/preproc_mbpp.py -i mbpp.jsonl -o problems_of_mbpp.jsonl", "--solutions"),
    Stage("livecodebench", "preproc/preproc_lcb_test6.py -i test6.jsonl -o problems_of_lcb.jsonl", "--paper_mode"),
    Stage(
        "groups of CodeNet",
        f"preproc/preproc_codenet.py -i codenet -o groups {_GROUPS}",
        "--max_accepted 1",
        several=_SPLITS,
    ),
    Stage(
        "groups of judged programs",
        f"preproc/preproc_judged.py -i judged.jsonl -o groups {_GROUPS}",
        "--max_accepted 1",
        several=_SPLITS,
    ),
    Stage("perturbation", "preproc/run_perturbation.py -i problems.jsonl -o perturbed.jsonl", "--seed 1", kept=2),
    Stage(
        "select",
        "preproc/process_multi_turn_taco.py -i run/evaluation.jsonl -o prompts.jsonl --model policy --prompts pocket",
        "--seed 1",
    ),
    Stage(
        "rows of problems",
        f"preproc/verl_preproc_single_turn.py --train_file problems.jsonl --validation_file validation.jsonl {_POLICY}"
        " --prompts pocket -o rows",
        "--data_source other",
        several=_ROWS,
    ),
    Stage(
        "rows of prompts",
        f"preproc/verl_preproc_multi_turn.py --train_file run/prompts.jsonl --validation_file run/test_prompts.jsonl"
        f" {_POLICY} -o rows",
        "--data_source other",
        several=_ROWS,
    ),
    Stage(
        "extraction",
        "extract_turn_level_errors.py -d run/problems.jsonl -i run/evaluation_perturbed.jsonl -o events.jsonl",
        "-i run/multi_turn_perturbed.jsonl",
    ),
    Stage(
        "classifier",
        "run_llm_judge.py -i run/events.jsonl -o classified.jsonl --model gpt-5-mini-2025-08-07 --concurrency 1",
        "--paper_verdicts",
        kept=1,
        several=("classified.calls.jsonl", "classified.jsonl"),
        api=True,
    ),
)


TRAINING = (
    "-m cobalt.training --data_dir rows --model model -o run data.train_batch_size=2 actor_rollout_ref.rollout.n=2"
    " actor_rollout_ref.actor.ppo_mini_batch_size=2 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
    " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"
    " actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4"
    " data.max_prompt_length=128 data.max_response_length=24 trainer.save_freq=1 trainer.test_freq=1"
    " trainer.total_epochs=2 +actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=16"
)
"""What trained `training/run`; its last setting was a default then."""


def slug(stage):
    """The stage's folder in `stages`."""
    return stage.name.replace(" ", "_")


def workplace(folder, data):
    """Make a folder with the inputs, to which results of the first stages belong; what a command writes is new."""
    shutil.copytree(data / "inputs", folder)
    shutil.copytree(RECORDED_RUN, folder / "run")
    for name in ("single_turn", "multi_turn"):
        result = data / "stages" / name / "whole" / f"{name}.jsonl"
        if result.exists():
            shutil.copyfile(result, folder / f"of_{name}.jsonl")
    return folder


def of_this_machine(manifest):
    """The text of a manifest with the Python of this machine, which may differ from the recorded one in its last part.

    Manifests have it, because programs run by it.
    """
    return re.sub(r'"python": "[\d.]+"', f'"python": "{platform.python_version()}"', manifest)


def put(results, folder):
    """Copy results and manifests into a folder, as old files."""
    for source in results.rglob("*"):
        if source.is_file():
            target = folder / source.relative_to(results)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            if target.name.endswith(".run.json"):
                target.write_text(of_this_machine(source.read_text()))
            os.utime(target, ns=(0, 0))


def put_training(folder, data):
    """Make a folder with a training run, its rows and its model, whose file of weights is empty.

    The manifest of a run has absolute paths. CHECKOUT and FOLDER stand for those of the machine that wrote it.
    """
    shutil.copytree(data / "training", folder)
    shutil.copytree(data / "stages/rows_of_problems/whole/rows", folder / "rows")
    shutil.copytree(data / "inputs/policy", folder / "model", dirs_exist_ok=True)
    (folder / "model/model.safetensors").touch()
    for path in folder.rglob("*.pt"):
        zipfile.ZipFile(path, "w").close()  # what is looked at is whether the archive is whole
    manifest = folder / "run/metrics.run.json"
    text = manifest.read_text().replace("CHECKOUT", str(outside.ROOT)).replace("FOLDER", str(folder.resolve()))
    manifest.write_text(text)
    return folder


def touched(stage, folder):
    """The results that a command wrote after `put`."""
    return [name for name in stage.results if (path := folder / name).exists() and path.stat().st_mtime_ns != 0]


def provider():
    """A provider whose verdict depends on the question alone."""
    return serve(lambda request: answer(f"Final Verdict: {_VERDICTS[len(json.dumps(request['body'])) % 4]}"))


def variables_of(url):
    """What lets a command ask a `provider`, which has another port each time."""
    return _NAME_AND_KEY | {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
