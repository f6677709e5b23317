"""A tiny model of each architecture through the whole chain: vLLM, the judge, a training step, export, and vLLM again.

    COBALT_LONG_TESTS=1 python -m pytest tests/long/test_architectures.py

Each model first learns, in seconds, to answer the training prompts by one of four programs, two of them right. So a
group of samples has several rewards, and the step has a gradient. A row takes about two minutes on two cores.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from chat_tokenizers import ARCHITECTURES, save_architecture
from support import ROOT, square_problem, write_lines

from cobalt.episode import first_messages, load_prompts
from cobalt.problems.problem import Problem

pytestmark = [
    pytest.mark.services,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set"),
]

PROGRAMS = ("print(int(input())**2)", "print(0)", "n=int(input());print(n*n)", "print(")
PROBLEM = square_problem(0)
PROMPT = first_messages(Problem.parse(PROBLEM), load_prompts("pocket"))
OVERRIDES = [
    "data.train_batch_size=4",
    "data.max_prompt_length=1024",
    "data.max_response_length=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "algorithm.rollout_correction.bypass_mode=false",  # the actor's own probabilities, to compare
    "trainer.total_training_steps=1",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
]


def learn(folder):
    """Give a policy weights with which it answers the prompt by the programs, each as likely as the others."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from cobalt.episode.chat_template import end_of_turn

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True)["input_ids"]
    answers = [tokenizer.encode(f"```python\n{text}\n```", add_special_tokens=False) for text in PROGRAMS]
    end = end_of_turn(tokenizer, {})
    longest = max(map(len, answers)) + 1
    rows = torch.tensor([[*prompt, *answer, *[end] * (longest - len(answer))] for answer in answers])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        logits = model(input_ids=rows[:, :-1]).logits[:, len(prompt) - 1 :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, len(prompt) :].flatten())
        loss.backward()
        optimizer.step()
    assert loss < 0.2, "the model has learned the answers"
    stops = folder / "generation_config.json"
    own = stops.read_text() if stops.exists() else None
    model.save_pretrained(folder)
    if own is not None:
        stops.write_text(own)


def greedy(folder):
    """The most likely answer by transformers, without its end."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True, return_tensors="pt")
    length = prompt["input_ids"].shape[1]
    return tokenizer.decode(model.generate(**prompt, do_sample=False, max_new_tokens=60)[0][length:])


def run(*words):
    finished = subprocess.run(
        [sys.executable, "-m", *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]


def sampled(model, problems, result):
    """The greedy program of each problem by vLLM, with the judge's verdicts."""
    flags = ["-n", "1", "--temperature", "0", "--max_tokens", "60", "--prompts", "pocket", "--engine", "dtype=float32"]
    run("cobalt.commands", "sample", "-i", problems, "-o", result, "--model", model, *flags)
    return [json.loads(line) for line in result.read_text().splitlines()]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_is_sampled_judged_trained_exported_and_served(tmp_path, name):
    import pyarrow
    from pyarrow import parquet
    from safetensors.torch import load_file

    model = tmp_path / "model"
    model.mkdir()
    save_architecture(model, name)
    learn(model)
    row = {
        "data_source": "squares",
        "prompt": PROMPT,
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": PROBLEM["test_cases"]},
        "extra_info": {"index": 0, "id": "p0", "split": "train", "prev_best_pass_rate": 0.0},
    }
    for split in ("train", "validation"):
        parquet.write_table(pyarrow.Table.from_pylist([row] * 4), tmp_path / f"{split}.parquet")
    output = tmp_path / "run"
    run("cobalt.training", "--data_dir", tmp_path, "--model", model, "-o", output, *OVERRIDES)
    [metrics] = [json.loads(line)["metrics"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert metrics["training/rollout_probs_diff_max"] < 1e-3, "vLLM and the actor are one policy"
    assert metrics["reward/verdict_passed"] > 0 and metrics["reward/no_code"] < 1
    assert metrics["actor/grad_norm"] > 0 and metrics["reward/equal_groups"] < 1

    before, after = (load_file(path / "model.safetensors") for path in (model, output / "model"))
    assert before.keys() == after.keys(), "a head that is tied stays so"
    assert any(not before[key].equal(after[key]) for key in before)
    problems = write_lines(tmp_path / "problems.jsonl", [PROBLEM])
    [record] = sampled(output / "model", problems, tmp_path / "sampled.jsonl")
    [text] = record["responses"]
    assert greedy(output / "model").startswith(text) and text.endswith("```")
    assert record["exec_results"], "the judge has run it"
