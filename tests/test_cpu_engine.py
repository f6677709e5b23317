"""What is changed in vLLM for training on a CPU, in a real engine: whole responses, and one thread for all groups."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said(seed_model):
    script = Path(__file__).with_name("cpu_engine.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    finished = subprocess.run(
        [sys.executable, script, seed_model], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout.splitlines()[-1])


def test_a_response_that_is_wanted_whole_is_sent_once_and_others_token_by_token(said):
    every_token = {"whole": 12, "other": 12, "no_logprobs": 12, "prompt_logprobs": 12, "streamed": 12, "text": 12}
    assert said["before"]["sent"] == every_token
    # Log-probs of the prompt come with the first token, which is not held back.
    assert said["after"]["sent"] == every_token | {"whole": 1, "other": 1, "no_logprobs": 1, "prompt_logprobs": 2}


def test_a_whole_response_has_the_tokens_and_log_probs_that_vllm_sends_one_by_one(said):
    assert said["after"]["found"] == said["before"]["found"]
    tokens, log_probs, reason, total = said["after"]["found"]["whole"]
    assert (len(tokens), len(log_probs), reason) == (12, 12, "length")
    assert total == pytest.approx(sum(log_probs))


def test_nothing_is_held_back_of_a_request_that_was_aborted(said):
    assert said["held"] == 1 and said["left"] == 0


def test_the_engines_groups_share_one_thread_that_polls(said):
    assert said["threads"]["gloo_tcp_loop"] == 1
    assert said["threads"]["pt_gloo_runloop"] > 2, "there are several groups"
