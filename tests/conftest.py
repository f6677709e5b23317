"""Shared by all tests: the machine's limits, a small model, and one set of real services for those that need them."""

import json
import shutil
import subprocess
import sys

import pytest
from support import ROOT


def _sandbox_works() -> bool:
    if shutil.which("bwrap") is None:
        return False
    probe = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def pytest_collection_modifyitems(items):
    if any(item.get_closest_marker("sandbox") or item.get_closest_marker("services") for item in items):
        if _sandbox_works():
            return
        # Failing, not skipping: without a sandbox nothing here can be trusted.
        pytest.exit("bubblewrap or user namespaces are missing: run scripts/setup.sh", returncode=1)


@pytest.fixture(scope="session")
def seed_model(tmp_path_factory):
    """A Qwen3 model of the pocket world, trained for a handful of steps: right in form, not in content."""
    from cobalt.datasets.pocket import build_pocket_world
    from cobalt.datasets.pocket.training import Recipe

    sizes = {"train": 12, "dev": 6, "test": 6}
    folder = tmp_path_factory.mktemp("pocket")
    return build_pocket_world(folder, sizes=sizes, recipe=Recipe(demonstrations=320)).model


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """A folder with a tokenizer and its chat template, as a model has them."""
    from cobalt.datasets.pocket.tokenizer import learn_tokenizer

    folder = tmp_path_factory.mktemp("policy")
    learn_tokenizer(["system problem answer feedback 0 1 2 3"], vocabulary=400).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def services(seed_model):
    """The judge and a vLLM engine on a private Ray in a process of their own; yields how to reach them."""
    settings = ["--engine", "max_model_len=1024", "--engine", "dtype=float32"]
    announce = (
        "import json, os, sys; names = [n for n in os.environ if n.startswith(('RAY_', 'COBALT_'))];"
        " print(json.dumps({n: os.environ[n] for n in names}), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-m", "cobalt.services", "--model", str(seed_model), *settings, "--"]
    command += [sys.executable, "-c", announce]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        # The first line on stdout is the child's; it comes when both apps answer, or never.
        line = process.stdout.readline()
        assert line, "the services did not start; their messages are above"
        yield json.loads(line)
    finally:
        process.stdin.close()
        process.wait(timeout=120)
