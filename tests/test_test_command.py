"""scripts/test.sh in a small checkout: every check runs, and the closing lines count what became of the tests."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

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
    for name in ("scripts/test.sh", "tests/closing.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tests" / "conftest.py").write_text('pytest_plugins = ("closing",)\n')
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    (tmp_path / "scripts" / "setup.sh").write_text("")
    (tmp_path / "pytest.ini").write_text(OPTIONS)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("ruff", "mypy"):
        (programs / name).write_text(f'#!/bin/sh\n[ ! -e broken-{name} ] || {{ echo "$*"; exit 1; }}\n')
        (programs / name).chmod(0o700)
    for name in ("pytest", "python"):
        (programs / name).write_text(f'#!/bin/sh\nexec {PROGRAMS / name} "$@"\n')
        (programs / name).chmod(0o700)
    return tmp_path


def start(checkout, *arguments, **options):
    alone = [] if "-n" in arguments else ["-n", "0"]  # a worker takes seconds to start
    command = ["bash", "scripts/test.sh", *arguments, *alone]
    quick = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.Popen(command, cwd=checkout, env=quick, stdout=subprocess.PIPE, text=True, **options)


def closing(process):
    """The exit code and the closing lines: those after the last empty one."""
    said = process.communicate(timeout=120)[0]
    return process.returncode, said.rstrip().rpartition("\n\n")[2].splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("present", "arguments", "code", "counts", "served"),
    [
        ([], ["-n", "2"], 0, "6 passed, 0 failed, 2 skipped", True),
        (["broken", "broken-ruff"], ["-n", "2"], 1, "4 passed, 2 failed, 2 skipped", True),
        (["broken-ruff", "broken-mypy"], ["-k", "serves"], 1, "2 passed, 0 failed, 0 skipped", True),
        ([], ["--fast"], 0, "4 passed, 0 failed, 2 skipped", False),
        ([], ["-k", "passes"], 0, "1 passed, 0 failed, 0 skipped", False),
        ([], ["-k", "nothing"], 5, "0 passed, 0 failed, 0 skipped", False),
    ],
)
def test_every_check_runs_and_the_last_line_counts_the_tests(checkout, present, arguments, code, counts, served):
    for name in present:
        (checkout / name).touch()
    returned, lines = closing(start(checkout, *arguments))
    assert (returned, lines[-1]) == (code, f"tests: {counts}")
    assert "not reached: 0" in lines
    assert ("skipped 2 x no wheel" in lines) == ("2 skipped" in counts)
    assert all(name.removeprefix("broken-") in str(lines) for name in present if "-" in name)
    assert (checkout / "served").exists() is served


@pytest.mark.slow
def test_an_interrupt_ends_the_tests_and_counts_those_that_were_not_reached(checkout):
    restored = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    (checkout / "tests" / "conftest.py").write_text(f'{restored}pytest_plugins = ("closing",)\n')
    (checkout / "slow").touch()
    process = start(checkout, process_group=0)
    while not (checkout / "waiting").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    code, lines = closing(process)
    assert (code, lines[-1]) == (130, "tests: 3 passed, 0 failed, 2 skipped")
    assert "not reached: 3" in lines
    assert not (checkout / "served").exists()
