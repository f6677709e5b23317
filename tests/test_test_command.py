"""scripts/test.sh in a small checkout: every check runs, and its exit code says whether one of them failed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, executable

OPTIONS = """[pytest]
testpaths = tests
addopts = -p xdist -p pytest_timeout
markers =
    sandbox
    services
    slow
"""
PROGRAMS = Path(sys.executable).parent
TESTS = """
import os
import pytest

def test_passes(): pass

def test_fails(): assert not os.path.exists("broken")

@pytest.mark.parametrize("n", [1, 2])
def test_is_skipped(n): pytest.skip("no wheel")

@pytest.fixture
def absent(): assert not os.path.exists("broken")

def test_has_no_fixture(absent): pass

@pytest.mark.services
def test_serves(): open("served", "w").close()

@pytest.mark.services
def test_serves_too(): pass
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout in which set-up, ruff and mypy do nothing, and pytest runs a handful of tests."""
    for name, text in (("scripts/setup.sh", ""), ("tests/test_some.py", TESTS), ("pytest.ini", OPTIONS)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "scripts/test.sh", tmp_path / "scripts")
    for name in ("ruff", "mypy"):
        executable(tmp_path / ".venv" / "bin" / name, f'[ ! -e broken-{name} ] || {{ echo "$*"; exit 1; }}')
    executable(tmp_path / ".venv" / "bin" / "pytest", f'exec {PROGRAMS / "pytest"} "$@"')
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("present", "arguments", "code", "counts", "served"),
    [
        ([], ["-n", "2"], 0, ["3 passed, 2 skipped", "2 passed", "no wheel"], True),
        (["broken", "broken-ruff"], ["-n", "2"], 1, ["1 failed, 1 passed, 2 skipped", "1 error", "2 passed"], True),
        (["broken-ruff", "broken-mypy"], ["-n", "0", "-k", "serves"], 1, ["2 passed"], True),
        ([], ["-n", "0", "--fast"], 0, ["3 passed, 2 skipped"], False),
        ([], ["-n", "0", "-k", "nothing"], 5, ["deselected"], False),
    ],
)
def test_every_check_runs_and_the_exit_code_says_whether_one_failed(checkout, present, arguments, code, counts, served):
    for name in present:
        (checkout / name).touch()
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = ["bash", "scripts/test.sh", *arguments]
    finished = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, timeout=120)
    said = finished.stdout
    assert finished.returncode == code and all(count in said for count in counts), said
    assert all(name.removeprefix("broken-") in said.splitlines()[-1] for name in present if "-" in name)
    assert (checkout / "served").exists() is served
