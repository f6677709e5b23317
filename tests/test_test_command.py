"""scripts/test.sh in a small checkout: every check runs, and its exit code says whether one of them failed."""

import os
import shutil
import signal
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
import os, signal, time
import pytest

def test_passes(): pass

def test_fails(): assert not os.path.exists("broken")

@pytest.mark.parametrize("n", [1, 2])
def test_is_skipped(n): pytest.skip("no wheel")

@pytest.fixture
def absent(): assert not os.path.exists("broken")

def test_has_no_fixture(absent): pass

def test_waits():
    if os.path.exists("slow"):
        open("waiting", "w").close()
        time.sleep(100)

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


def start(checkout, *arguments, **options):
    alone = [] if "-n" in arguments else ["-n", "0"]  # a worker takes seconds to start
    command = ["bash", "scripts/test.sh", *arguments, *alone]
    quick = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.Popen(command, cwd=checkout, env=quick, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("present", "arguments", "code", "counts", "served"),
    [
        ([], ["-n", "2"], 0, ["4 passed, 2 skipped", "2 passed"], True),
        (["broken", "broken-ruff"], ["-n", "2"], 1, ["1 failed, 2 passed, 2 skipped", "1 error", "2 passed"], True),
        (["broken-ruff", "broken-mypy"], ["-k", "serves"], 1, ["2 passed"], True),
        ([], ["--fast"], 0, ["4 passed, 2 skipped"], False),
        ([], ["-k", "passes"], 0, ["1 passed"], False),
        ([], ["-k", "nothing"], 5, ["deselected"], False),
    ],
)
def test_every_check_runs_and_the_exit_code_says_whether_one_failed(checkout, present, arguments, code, counts, served):
    for name in present:
        (checkout / name).touch()
    process = start(checkout, *arguments)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == code and all(count in said for count in counts), said
    assert ("no wheel" in said) == ("2 skipped" in counts[0])
    last = said.splitlines()[-1]
    assert all(name.removeprefix("broken-") in last for name in present if "-" in name)
    assert (checkout / "served").exists() is served


@pytest.mark.slow
def test_an_interrupt_ends_the_tests_and_what_had_run_is_counted(checkout):
    restored = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    (checkout / "tests" / "conftest.py").write_text(restored)
    (checkout / "slow").touch()
    process = start(checkout, process_group=0)
    while not (checkout / "waiting").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0 and "3 passed, 2 skipped" in said
    assert not (checkout / "served").exists()
