"""Mistakes of users end a command with one sentence about the flag, file or setting at fault."""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT, needs_api, square_problem, write_lines


def script(name, *arguments):
    return [sys.executable, str(ROOT / name), *arguments]


def services(*arguments):
    return [sys.executable, "-m", "cobalt.services", *arguments]


def cobalt(*arguments):
    return [sys.executable, "-m", "cobalt.commands", *arguments]


SINGLE = script("run_single_turn_vllm.py", "-i", "problems.jsonl", "-o", "single.jsonl")
MULTI = script("run_multi_turn_vllm.py", "-i", "first.jsonl", "-o", "multi.jsonl")
TRAINING = [
    *(sys.executable, "-m", "cobalt.training", "--data_dir", "data", "--model", "chat-model", "--output_dir", "run"),
]

MISTAKES = {
    # What the sentence must name, the command, and its environment.
    "cobalt serve": (cobalt("sample", "-i", "problems.jsonl", "-o", "single.jsonl"), {}),
    "serve run": (SINGLE, {}),
    "http://127.0.0.1:1/evaluator": (
        [*SINGLE, "--replay_file", "first.jsonl", "-n", "2", "--ids", "1"],
        {"COBALT_HTTP": "http://127.0.0.1:1"},
    ),
    "num_replicas=2": (services("--model", "chat-model", "--engine", "num_replicas=2", "--", "true"), {}),
    "base-model": (services("--model", "base-model", "--", "true"), {}),
    "chat-modle": (services("--model", "./chat-modle", "--", "true"), {}),
    "HF_HUB_OFFLINE": (services("--model", "Qwen/Qwen3-8B", "--", "true"), {"HF_HUB_OFFLINE": "1"}),
    "max_length": (services("--model", "chat-model", "--engine", "max_length=4096", "--", "true"), {}),
    "http_port": (services("--http_port", "99999", "--", "true"), {}),
    "temperature": ([*MULTI, "--temperature", "1.0"], {}),
    "-n 4": ([*MULTI, "-n", "4"], {}),
    "recorded.jsonl": ([*SINGLE, "--replay_file", "recorded.jsonl", "-n", "1"], {}),
    "data.trian_batch_size": ([*TRAINING, "data.trian_batch_size=4"], {}),
}


@pytest.fixture
def folder(tmp_path):
    """The files that the commands name."""
    for name, template in (("base-model", {}), ("chat-model", {"chat_template": "{{ messages }}"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").touch()
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(template))
    write_lines(tmp_path / "problems.jsonl", [square_problem(1), square_problem(2)])
    write_lines(tmp_path / "recorded.jsonl", [{"id": "another", "responses": ["a"]}])
    write_lines(tmp_path / "first.jsonl", [square_problem(1, responses=["a", "b"])])
    generation = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 8192, "chat_template_thinking": "default"}
    from cobalt.episode import load_prompts

    arguments = {"stage": "single_turn", "generation": generation, "prompts": dict(load_prompts("paper").digests)}
    (tmp_path / "first.run.json").write_text(json.dumps({"arguments": arguments, "inputs": {}}))
    return tmp_path


def last_line(command, folder, variables):
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder / "run")}  # no `cobalt serve` of the user's
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'verl'}"} | variables
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert finished.returncode in (1, 2), finished.stderr
    assert "Traceback" not in finished.stderr
    return finished.stderr.strip().splitlines()[-1]


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.parametrize("named", MISTAKES)
def test_a_mistake_is_answered_by_a_sentence_that_names_it(named, folder):
    command, variables = MISTAKES[named]
    line = last_line(command, folder, variables)
    assert line.startswith("error: ") and named in line


@needs_api
def test_a_missing_key_is_named_by_its_variable(folder):
    command = script("run_single_turn_litellm.py", "-i", "problems.jsonl", "-o", "api.jsonl")
    assert "OPENAI_API_KEY" in last_line(command, folder, {"OPENAI_API_KEY": ""})
