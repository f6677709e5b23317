"""Mistakes of users end a command with one sentence that names the flag, file or setting, before anything starts."""

import json
import subprocess
import sys

import pytest
from outside import assert_each_is_refused, run_commands
from support import ROOT, needs_api, square_problem, write_lines

from cobalt.commands.try_problems import Arguments
from cobalt.datasets.split_tests import split_problem_file
from cobalt.engine.model_name import fingerprint
from cobalt.episode import load_prompts
from cobalt.stage.manifest import open_manifest

SERVICES = "-m cobalt.services"
SINGLE = "run_single_turn_vllm.py -i problems.jsonl -o single.jsonl"
MULTI = "run_multi_turn_vllm.py -i first.jsonl -o multi.jsonl"
TRY = "cobalt try problems.jsonl -o tried"
RUN = "cobalt try unsplit.jsonl -o run"
EVALUATE = "eval_multi_turn.py -i first.jsonl -o evaluated.jsonl"

OF_COMMANDS = {
    f"{SINGLE} --temperature -1": "'temperature'",
    f"{SINGLE} --top_p 1.5": "'top_p'",
    f"{SINGLE} -n 0": "num_completions",
    f"{SINGLE} --concurrency 0": "concurrency",
    f"{SINGLE} --prompts none-such": "'none-such'",
    f"{SINGLE} --limit 0": "--limit",
    f"{SINGLE} --ids 1 none-such": "--ids none-such",
    f"{SINGLE} --replay_file absent.jsonl": "absent.jsonl",
    f"{SINGLE} --replay_file recorded.jsonl -n 2": ("recorded.jsonl", "problem 1", "-n", "--ids"),
    f"{MULTI} --replay_file first.jsonl --turns 1": ("first.jsonl", "problem 1", "--turns"),
    f"{SINGLE} --replay_file first.jsonl --ids 1 -n 3": ("first.jsonl", "problem 1", "3", "-n"),
    f"{SINGLE} -i absent.jsonl": "absent.jsonl",
    f"{SINGLE} --input-file absent.jsonl": "absent.jsonl",
    f"{SINGLE} -i bad.jsonl": ("bad.jsonl", "line 2", "'question'"),
    f"{SINGLE} -i empty.jsonl": "empty.jsonl",
    f"{SINGLE} -i deep.jsonl": ("deep.jsonl", "line 1"),
    f"{SINGLE} -i half.jsonl": ("half.jsonl", "line 1"),
    f"{SINGLE} -o /dev/null": "'/dev/null'",
    # The problem brings a first message, which these prompts would not word.
    f"{SINGLE} -i own.jsonl --prompts paper": "'two'",
    f"{MULTI} -i own.jsonl --prompts program": "'two'",
    f"{MULTI} -i closed.jsonl": ("problem 1", "'public_test_cases'"),
    f"{MULTI} --public_tests perturbed": "perturbed_public_test_cases",
    f"{MULTI} -i turns.jsonl": ("problem 1", "'finish_reasons.0'"),
    f"{MULTI} --temperature 1.0": "temperature",
    f"{MULTI} -n 4": "-n 4",
    "cobalt sample -i problems.jsonl -o single.jsonl": "`cobalt serve --model",
    EVALUATE: ("first.jsonl", "'raw_responses'", "'conversations'"),
    "cobalt smaple": "sample",
    f"{TRY} --model chat -n 0": "num_completions",
    f"{TRY} --model chat --limit 0": "--limit",
    f"{TRY} --model chat --ids b": "--ids b",
    f"{TRY} --model chat --public_tests 0": "public_tests",
    f"{TRY} --model chat --prompts ?": "?",
    f"{TRY} --model chat --engine x=1": "'x'",
    f"{TRY} --model /no/such/folder": "/no/such/folder",
    "cobalt try own.jsonl --model chat --prompts paper -o tried_own": "'two'",
    # The folder has a run of other settings.
    f"{RUN} --model chat --max_tokens 256": "generation.max_tokens",
    f"{RUN} --model chat -n 3": "generation.n",
    f"{RUN} --model chat --prompts pocket": "prompts",
    f"{RUN} --model chat --public_tests 2": "problems.jsonl",
    f"{RUN} --model other": "engine.model",
    f"{RUN} --model other/chat": "engine.fingerprint",
    "-m cobalt.training --data_dir data --model chat -o run data.trian_batch_size=4": "data.trian_batch_size",
    "-m cobalt.pocket --output_dir world --demonstrations 10": "demonstrations",
    "-m cobalt.pocket --output_dir world --open_share 1.5": "open_share",
    "-m cobalt.pocket --output_dir world --special_cases -0.1": "special_cases",
    f"{SERVICES} --engine a=1 -- true": "--model",
    f"{SERVICES} --model ./chta -- true": "chta",
    f"{SERVICES} --model /no/such/model -- true": "/no/such/model",
    f"{SERVICES} --model base -- true": ("base", "chat_template.jinja"),
    f"{SERVICES} --model Qwen/Qwen3-8B -- true": "HF_HUB_OFFLINE",
    f"{SERVICES} --model owner//name -- true": "owner//name",
    f"{SERVICES} --model chat --engine num_replicas=2 -- true": "num_replicas=2 --name vllm_actor",
    f"{SERVICES} --model chat --engine max_length=4096 -- true": "max_length",
    f"{SERVICES} --judge no_key=1 -- true": "no_key",
    f"{SERVICES} --judge comparison=none-such --judge cpu_seconds=1 -- true": "comparison",
    f"{SERVICES} --judge no_value -- true": "no_value",
    f"{SERVICES} --judge num_replicas=2 -- true": "num_replicas=2 --name evaluator",
    f"{SERVICES} -- no-such-command": "no-such-command",
}
"""Words that each sentence must have."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the commands name."""
    folder = tmp_path_factory.mktemp("mistakes")
    chat = {"chat_template": "{{ messages }}"}
    for name, template in (("base", {}), ("chat", chat), ("other", chat), ("other/chat", chat)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"name": name}))
        (folder / name / "model.safetensors").touch()
        (folder / name / "tokenizer_config.json").write_text(json.dumps(template))
    problem, numbers = square_problem(1), [*"123456789"]
    for name, records in {
        "problems": [problem, square_problem(2)],
        "recorded": [{"id": "another", "responses": ["a", "b"]}],
        "first": [square_problem(1, responses=["a", "b"])],
        "own": [problem, square_problem("two", instruction="Mine.")],
        "closed": [square_problem(1, public_test_cases=None)],
        "bad": [problem, {"id": 2}],
        "turns": [square_problem(1, responses=["a"], finish_reasons=["tired"])],
        "half": [square_problem(1, question="half a \ud800 pair")],
        "empty": [],
        "unsplit": [{"id": "a", "question": "Print it.", "test_cases": {"inputs": numbers, "outputs": numbers}}],
    }.items():
        write_lines(folder / f"{name}.jsonl", records)
    (folder / "deep.jsonl").write_text('{"id":' + "[" * 100_000)
    generation = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 8192, "chat_template_thinking": "default"}
    arguments = {"stage": "single_turn", "generation": generation, "prompts": dict(load_prompts("paper").digests)}
    (folder / "first.run.json").write_text(json.dumps({"arguments": arguments, "inputs": {}}))
    run = Arguments(folder / "unsplit.jsonl", folder / "run").sample_settings()
    split_problem_file(folder / "unsplit.jsonl", run.input_file, limit=None, ids=[])
    engine = {"model": "chat", "fingerprint": fingerprint(folder / "chat")}
    open_manifest(run.output_file, {"stage": "single_turn", "engine": engine} | run.decisive(), [run.input_file])
    write_lines(run.output_file, [problem])
    return folder


@pytest.mark.sandbox
@pytest.mark.slow
def test_a_mistake_is_answered_by_a_sentence_that_names_it_and_starts_nothing(folder):
    before, caches = {*folder.iterdir()}, {"XDG_CACHE_HOME": str(folder / "cache")}  # where logs would be
    assert_each_is_refused([command.split() for command in OF_COMMANDS], OF_COMMANDS.values(), folder, **caches)
    tried = folder / "tried"  # has the problems with their split tests
    assert {*folder.iterdir()} - before == {tried}
    assert {path.name for path in tried.iterdir()} <= {"problems.jsonl", "problems.run.json"}


@pytest.mark.slow
@needs_api
def test_a_wrong_flag_a_service_that_is_not_there_and_a_missing_key_are_named(folder):
    ends = {
        SINGLE: (1, "serve run vllm_engine_actor:app"),
        f"{MULTI} -n 2": (1, "--engine_url"),
        f"{SINGLE} --no_such_flag 1": (2, "no_such_flag"),
        f"{SINGLE} --replay_file first.jsonl -n 2 --ids 1": (1, "http://127.0.0.1:1/evaluator"),
        "run_single_turn_litellm.py -i problems.jsonl -o api.jsonl": (2, "OPENAI_API_KEY"),
    }
    variables = {"COBALT_JUDGE_URL": "http://127.0.0.1:1/evaluator", "OPENAI_API_KEY": "", "XDG_RUNTIME_DIR": "/none"}
    ended = run_commands([(folder, command.split()) for command in ends], **variables)
    for (code, named), (ended_with, _, said) in zip(ends.values(), ended, strict=True):
        assert ended_with == code and named in said and "Traceback" not in said, said


def test_help_of_a_script_imports_neither_ray_nor_torch_and_a_reader_that_has_seen_enough_gets_no_traceback():
    command = f"{sys.executable} -X importtime run_multi_turn_vllm.py --help | true"
    finished = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}
    assert "tyro" in imported and not imported & {"ray", "torch", "vllm", "transformers", "verl"}
    assert "Traceback" not in finished.stderr
