"""Mistakes of users end a command with one sentence that names the flag, file or setting, before anything starts."""

import json

import pytest
from outside import run_commands
from support import needs_api, square_problem, write_lines

from cobalt.episode import load_prompts

SERVICES = "-m cobalt.services"
SINGLE = "run_single_turn_vllm.py -i problems.jsonl -o single.jsonl"
MULTI = "run_multi_turn_vllm.py -i first.jsonl -o multi.jsonl"

MISTAKES = {
    "cobalt sample -i problems.jsonl -o single.jsonl": "cobalt serve",
    SINGLE: "serve run",
    f"{SINGLE} --replay_file recorded.jsonl -n 1": "recorded.jsonl",
    f"{MULTI} --temperature 1.0": "temperature",
    f"{MULTI} -n 4": "-n 4",
    "-m cobalt.training --data_dir data --model chat -o run data.trian_batch_size=4": "data.trian_batch_size",
    f"{SERVICES} --model ./chta -- true": "chta",
    f"{SERVICES} --model /no/such/model -- true": "/no/such/model",
    f"{SERVICES} --model base -- true": "chat template",
    f"{SERVICES} --model Qwen/Qwen3-8B -- true": "HF_HUB_OFFLINE",
    f"{SERVICES} --model owner/no-such-model -- true": "owner/no-such-model",
    f"{SERVICES} --model chat --engine num_replicas=2 -- true": "num_replicas=2",
    f"{SERVICES} --model chat --engine max_length=4096 -- true": "max_length",
    f"{SERVICES} --judge no_key=1 -- true": "no_key",
    f"{SERVICES} --judge comparison=none-such --judge cpu_seconds=1 -- true": "comparison",
    f"{SERVICES} --judge no_value -- true": "no_value",
    f"{SERVICES} --judge num_replicas=2 -- true": "num_replicas=2 --name evaluator",
    f"{SERVICES} --http_port 99999 -- true": "99999",
    f"{SERVICES} --http_port 0 -- true": "http_port is 0",
    f"{SERVICES} -- no-such-command": "no-such-command",
}
"""What each sentence must name."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the commands name."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, template in (("base", {}), ("chat", {"chat_template": "{{ messages }}"})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
        (folder / name / "model.safetensors").touch()
        (folder / name / "tokenizer_config.json").write_text(json.dumps(template))
    write_lines(folder / "problems.jsonl", [square_problem(1), square_problem(2)])
    write_lines(folder / "recorded.jsonl", [{"id": "another", "responses": ["a"]}])
    write_lines(folder / "first.jsonl", [square_problem(1, responses=["a", "b"])])
    generation = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 8192, "chat_template_thinking": "default"}
    arguments = {"stage": "single_turn", "generation": generation, "prompts": dict(load_prompts("paper").digests)}
    (folder / "first.run.json").write_text(json.dumps({"arguments": arguments, "inputs": {}}))
    return folder


def answers(folder, *commands, **variables):
    """What each command wrote on standard error, in order."""
    # No `cobalt serve` of the user's is used.
    places = {"XDG_RUNTIME_DIR": str(folder / "run"), "XDG_CACHE_HOME": str(folder / "cache")}
    ended = run_commands([(folder, command.split()) for command in commands], **places | variables)
    for command, (code, _, said) in zip(commands, ended, strict=True):
        assert code in (1, 2) and "Traceback" not in said, (command, said)
    return [said for _, _, said in ended]


@pytest.fixture(scope="module")
def said(folder):
    before = sorted(folder.iterdir())
    said = dict(zip(MISTAKES, answers(folder, *MISTAKES), strict=True))
    assert sorted(folder.iterdir()) == before, "nothing was started, which would have logs, and nothing written"
    return said


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_answered_by_a_sentence_that_names_it(command, said):
    [line] = said[command].splitlines()
    assert line.startswith("error: ") and MISTAKES[command] in line


@pytest.mark.slow
def test_a_judge_that_does_not_answer_is_named_by_its_address(folder):
    command = f"{SINGLE} --replay_file first.jsonl -n 2 --ids 1"
    [said] = answers(folder, command, COBALT_HTTP="http://127.0.0.1:1")
    assert "http://127.0.0.1:1/evaluator" in said.splitlines()[-1]


@needs_api
def test_a_missing_key_is_named_by_its_variable(folder):
    [said] = answers(folder, "run_single_turn_litellm.py -i problems.jsonl -o api.jsonl", OPENAI_API_KEY="")
    assert "OPENAI_API_KEY" in said.splitlines()[-1]
