"""Shared by all tests: the machine's limits, a small model, and one set of real services for those that need them."""

import gc
import json
import shutil
import signal
import subprocess

import hypothesis
import pytest
from chromium import CHROMIUM, Chromium
from serving import running
from support import locked_folder

# A shell that is not interactive starts its background jobs with SIGINT ignored, which every child inherits: the
# programs that tests interrupt would go on. Each process of pytest-xdist imports this file, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# At the import of torch and transformers the collector would look at half a million objects again and again.
gc.set_threshold(50_000, 10, 10)

# On a busy machine any example may take long; hanging tests are pytest-timeout's business.
hypothesis.settings.register_profile("cobalt", deadline=None)
hypothesis.settings.load_profile("cobalt")


def _sandbox_works() -> bool:
    if shutil.which("bwrap") is None:
        return False
    probe = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def pytest_collection_modifyitems(items):
    # Each file with services is run by one of two processes, and the file that takes longest is begun first.
    items.sort(key=lambda item: item.path.name != "test_training_services.py")
    if any(item.get_closest_marker("sandbox") or item.get_closest_marker("services") for item in items):
        if _sandbox_works():
            return
        # Failing, not skipping: without a sandbox nothing here can be trusted.
        pytest.exit("bubblewrap or user namespaces are missing: run scripts/setup.sh", returncode=1)


@pytest.fixture(scope="session")
def seed_model(tmp_path_factory):
    """A Qwen3 model of the pocket world, trained for a handful of steps: right in form, not in content."""
    from cobalt.pocket import build_pocket_world
    from cobalt.pocket.training import Recipe

    sizes = {"train": 12, "dev": 6, "test": 6}
    recipe = Recipe(128, layers=2, heads=4, key_value_heads=2, feed_forward=128, demonstrations=480)
    with locked_folder(tmp_path_factory, "pocket") as folder:  # a world that is there is not built again
        return build_pocket_world(folder, sizes=sizes, recipe=recipe, open_share=0).model


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """A folder with a tokenizer and its chat template, as a model has them."""
    from cobalt.pocket.tokenizer import learn_tokenizer

    folder = tmp_path_factory.mktemp("policy")
    learn_tokenizer(["system problem answer feedback 0 1 2 3"], vocabulary=400).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def services(seed_model, tmp_path_factory):
    """The judge and a vLLM engine of a `cobalt serve`; yields how to reach them."""
    folder = tmp_path_factory.mktemp("services")
    engine = ("--engine", "max_model_len=1024", "--engine", "dtype=float32")
    with running(folder, "serve", "--model", seed_model, *engine) as command:
        command.wait_for(lambda: list((folder / "run").glob("cobalt/*.json")))
        yield json.loads(next((folder / "run").glob("cobalt/*.json")).read_text())["variables"]
        assert command.end("SIGTERM to the process")[0] == 0


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser
