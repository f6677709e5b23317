"""docs/troubleshooting.md quotes messages that really occur: they are provoked here where that is cheap.

The others need a cluster, a GPU, a provider or a machine that is set up wrongly. Of those the test checks that the
quoted message is one that a template in the source can make. What follows the first `...` in a quoted message is not
compared.
"""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support import ROOT, needs_api, square_problem, write_lines

PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = [block.strip() for block in re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)]

FOREIGN = {
    # Messages that another library makes and ours quotes: the part of its own, and a file that has it.
    "No available memory for the cache blocks": ("vllm", "v1/core/kv_cache_utils.py"),
}


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

ABSENT = "this machine's cache of the Hub does not have the model"

PROVOKED = {
    # The beginning of the quoted message, the command that makes it, and its environment.
    "error: there is no engine": (cobalt("sample", "-i", "problems.jsonl", "-o", "single.jsonl"), {}),
    "error: no engine is running": (SINGLE, {}),
    "error: the judge does not answer at http://127.0.0.1:1": (
        [*SINGLE, "--replay_file", "first.jsonl", "-n", "2", "--ids", "1"],
        {"COBALT_HTTP": "http://127.0.0.1:1"},
    ),
    "error: num_replicas=2: only": (
        services("--model", "chat-model", "--engine", "num_replicas=2", "--", "true"),
        {},
    ),
    "error: base-model has no chat template": (services("--model", "base-model", "--", "true"), {}),
    "error: there is no folder chat-modle": (services("--model", "./chat-modle", "--", "true"), {}),
    f"error: there is no folder Qwen/Qwen3-8B, {ABSENT}, and HF_HUB_OFFLINE": (
        services("--model", "Qwen/Qwen3-8B", "--", "true"),
        {"HF_HUB_OFFLINE": "1"},
    ),
    "error: there is no setting 'max_length'": (
        services("--model", "chat-model", "--engine", "max_length=4096", "--", "true"),
        {},
    ),
    "error: http_port is 99999": (services("--http_port", "99999", "--", "true"), {}),
    "error: the first turn in first.jsonl was made": ([*MULTI, "--temperature", "1.0"], {}),
    "error: the first turn in first.jsonl has 2 samples": ([*MULTI, "-n", "4"], {}),
    "error: recorded.jsonl holds responses for none": ([*SINGLE, "--replay_file", "recorded.jsonl", "-n", "1"], {}),
    "error: the configuration cannot be composed": ([*TRAINING, "data.trian_batch_size=4"], {}),
}


@pytest.fixture
def folder(tmp_path):
    """The files that the commands name."""
    for name, template in (("base-model", {}), ("chat-model", {"chat_template": "{{ messages }}"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
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


def is_quoted(message, quoted):
    beginning, dots, _ = quoted.partition("...")
    return message.startswith(beginning) if dots else message == quoted


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.parametrize("begins", PROVOKED)
def test_a_quoted_message_is_what_the_command_says(begins, folder):
    [quoted] = [message for message in MESSAGES if message.startswith(begins)]
    command, variables = PROVOKED[begins]
    assert is_quoted(last_line(command, folder, variables), quoted)


@needs_api
def test_the_message_about_a_missing_key_is_what_the_command_says(folder):
    [quoted] = [message for message in MESSAGES if message.startswith("error: there is no key for")]
    command = script("run_single_turn_litellm.py", "-i", "problems.jsonl", "-o", "api.jsonl")
    variables = {"OPENAI_API_KEY": ""}
    assert is_quoted(last_line(command, folder, variables), quoted)


@cache
def templates():
    """Every text in the source that can be a message, as its literal parts; between them it fills in anything."""
    found = []
    for path in [*(ROOT / "cobalt").rglob("*.py"), *(ROOT / "verl").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = re.sub(r"\{\w+\}|%[sdr]", "\0", node.value)
            else:
                continue
            if len(text.replace("\0", "")) > 18:
                found.append(text.split("\0"))
    return found


def makes(literals, message, *, whole):
    """Whether a template makes a message, or, unless it is whole, one that begins so."""
    for count in [len(literals)] if whole else range(1, len(literals) + 1):
        *before, last = literals[:count]
        pattern = "".join(re.escape(literal) + ".+?" for literal in before)
        if whole:
            if re.fullmatch(pattern + re.escape(last), message, re.DOTALL):
                return True
            continue
        for length in range(len(last) + 1):
            if (before or length > 18) and re.fullmatch(pattern + re.escape(last[:length]), message, re.DOTALL):
                return True
    return False


@pytest.mark.parametrize("quoted", MESSAGES)
def test_a_quoted_message_is_one_that_the_source_makes(quoted):
    message, dots, _ = quoted.removeprefix("error: ").partition(" (logs: ")[0].partition("...")
    for words, (package, file) in FOREIGN.items():
        spec = importlib.util.find_spec(package)
        if words in message and spec is not None:
            assert words in (Path(spec.origin).parent / file).read_text()
    candidates = [literals for literals in templates() if message.startswith(literals[0])]
    assert any(makes(literals, message.rstrip() if dots else message, whole=not dots) for literals in candidates)


def test_a_message_that_no_template_makes_would_be_found():
    for said in (
        "app 'vllm_actor' cannot be reached, since nobody is at home: go away",
        "the first turn in first.jsonl was made in another way: give the same settings",
    ):
        assert not any(makes(literals, said, whole=True) for literals in templates() if said.startswith(literals[0]))


def test_every_message_is_answered_by_its_cause_and_what_to_do():
    sections = re.split(r"```text\n.*?```", PAGE.read_text(), flags=re.DOTALL)[1:]
    assert len(MESSAGES) == len(set(MESSAGES)) >= 25
    for message, text in zip(MESSAGES, sections, strict=True):
        assert re.search(r"\*\*Cause\.\*\* \S", text), message
        assert re.search(r"\*\*What to do\.\*\* \S", text), message
