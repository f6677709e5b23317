"""Shared by all tests: the machine's limits, a small model, and one set of real services for those that need them."""

import shutil
import subprocess

import pytest
from support import SHARED_DATA


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


@pytest.fixture
def shared_data():
    """Real problems; they lie beside the checkout, not in it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("../shared/data is not on this machine; tests that need no outside data cover the same code")
    return SHARED_DATA
