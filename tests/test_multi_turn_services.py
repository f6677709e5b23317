"""Online multi-turn training: trajectories for real, by veRL's vLLM server and the judge."""

import json
import math
import subprocess
import sys

import pytest
from support import ROOT

from cobalt.episode import history_text
from cobalt.selection.verl_rows import SingleTurnRowsSettings, convert_single_turn

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def rows(seed_model, tmp_path_factory):
    """Rows of episodes by the pocket world's own rules."""
    folder = tmp_path_factory.mktemp("rows")
    world = seed_model.parent / "data"
    run = SingleTurnRowsSettings(
        train_file=world / "train.jsonl", validation_file=world / "dev.jsonl", local_dir=folder,
        model_name=str(seed_model), max_prompt_length=512, data_source="pocket", prompts="pocket", episodes=True,
        enable_thinking=True, truncated_thinking="drop",
    )  # fmt: skip
    convert_single_turn(run)
    return folder


@pytest.fixture(scope="module")
def episodes(seed_model, rows, tmp_path_factory):
    """Trajectories of two turns, with histories that keep responses whole and such that leave out the thinking."""
    result = tmp_path_factory.mktemp("episodes") / "episodes.json"
    command = [sys.executable, "tests/real_rollout.py", str(seed_model), str(rows), str(result)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-4000:]
    return json.loads(result.read_text())


@pytest.fixture(scope="module")
def tokenizer(seed_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(seed_model)


def test_the_policy_sees_the_chat_templates_own_rendering_of_the_episode(episodes, tokenizer):
    for episode in episodes:
        assert len(episode["turns"]) == 2
        first, second = episode["turns"]
        for turn in (first, second):
            rendered = tokenizer.apply_chat_template(
                turn["conversation"], tokenize=True, add_generation_prompt=True, return_dict=False
            )
            assert turn["prompt"] == rendered
        response = tokenizer.decode(first["response"], skip_special_tokens=True)
        *before, answer, feedback = second["conversation"]
        assert before == first["conversation"] and feedback["role"] == "user"
        assert answer["content"] == history_text(response, episode["enable_thinking"], "drop")


def test_each_response_of_a_row_follows_the_tokens_that_the_policy_saw_and_nothing_else_counts(episodes):
    for episode in episodes:
        written = []
        turns = iter(episode["turns"])
        for row in episode["rows"]:
            counted = [0] * len(row["response_ids"])
            for span in row["extra_fields"]["episode"]["turns"]:
                turn = next(turns)
                assert row["prompt_ids"] + row["response_ids"][: span["start"]] == turn["prompt"]
                assert row["response_ids"][span["start"] : span["stop"]] == turn["response"]
                counted[span["start"] : span["stop"]] = [1] * len(turn["response"])
                written.append(turn["response"])
            assert row["response_mask"] == counted
            for mask, value in zip(row["response_mask"], row["response_logprobs"], strict=True):
                assert math.exp(value) <= 1 + 1e-6 if mask else value == 0
        assert written == [turn["response"] for turn in episode["turns"]]
    assert {len(e["rows"]) for e in episodes if not e["enable_thinking"]} >= {1}, "whole histories make one row"


def test_a_row_is_the_chat_templates_rendering_of_its_last_turn(episodes, tokenizer):
    for episode in episodes:
        turns = iter(episode["turns"])
        for row in episode["rows"]:
            *_, last = [next(turns) for _ in row["extra_fields"]["episode"]["turns"]]
            rendered = tokenizer.apply_chat_template(
                last["conversation"], tokenize=True, add_generation_prompt=True, return_dict=False
            )
            assert row["prompt_ids"] + row["response_ids"] == rendered + last["response"]


def test_the_reward_of_a_trajectory_is_real(episodes):
    for episode in episodes:
        *others, last = episode["rows"]
        parts = last["extra_fields"]["reward_extra_info"]
        assert last["reward_score"] == parts["score"] and -1 <= parts["score"] <= 1
        assert all(row["reward_score"] is None for row in others)
        assert (parts["turns"], parts["rows"]) == (2, len(episode["rows"]))
        assert parts["generated_tokens"] == sum(len(turn["response"]) for turn in episode["turns"])
