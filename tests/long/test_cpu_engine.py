"""What is changed in vLLM on a CPU, in a real engine: one thread for all its process groups."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set")
def test_the_engines_groups_share_one_thread_that_polls(seed_model):
    script = Path(__file__).with_name("cpu_engine.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    finished = subprocess.run(
        [sys.executable, script, seed_model], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    threads = json.loads(finished.stdout.splitlines()[-1])
    assert threads["gloo_tcp_loop"] == 1
    assert threads["pt_gloo_runloop"] > 2, "there are several groups"
