"""The project as a package: what its wheel holds, and that `cobalt` runs from it without the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
from support import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built in a copy of it."""
    pytest.importorskip("setuptools", "77")
    source, result = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("cobalt", "verl"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(result)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True, timeout=120)
    [path] = result.glob("*.whl")
    return path


def test_the_wheel_holds_every_file_of_both_packages(wheel):
    listed = subprocess.check_output(["git", "ls-files", "cobalt", "verl/cobalt_verl"], cwd=ROOT, text=True)
    expected = {name.removeprefix("verl/") for name in listed.split() if (ROOT / name).exists()}
    assert {"cobalt/py.typed", "cobalt_verl/py.typed", "cobalt_verl/config/train.yaml"} <= expected
    assert not expected - set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture
def installed(wheel, tmp_path):
    """A folder with what the wheel installs."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "packages")
    return tmp_path / "packages"


def run(folder, *words, **variables):
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=120
    )


def test_cobalt_runs_from_the_wheel_alone(installed):
    [points] = installed.glob("*.dist-info/entry_points.txt")
    assert "cobalt = cobalt.commands.main:main" in points.read_text()
    # Without the packages of the environment, which help does not need; a command says which one is missing.
    start = ("-S", "-c", "from cobalt.commands.main import main; main()")
    overview, without = (run(installed, *start, *words, PYTHONPATH="") for words in (["--help"], ["sample", "--help"]))
    assert overview.returncode == 0 and "sample" in overview.stdout
    assert without.returncode == 2 and "tyro" in without.stderr and "Traceback" not in without.stderr


def test_version_and_moved_paths_are_those_that_the_changelog_says():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^## ([\d.]+) - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)[1] == version
    moved = re.findall(r"^\| `(cobalt[\w.]*)` \| `((?:cobalt|studies)[\w.]*)` \|$", changes, re.MULTILINE)
    files = {str(path.relative_to(ROOT)) for part in ("cobalt", "studies") for path in (ROOT / part).rglob("*.py")}
    files |= {str(path.relative_to(ROOT / "verl")) for path in (ROOT / "verl").rglob("*.py")}
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files}
    assert len(moved) > 50
    assert [pair for pair in moved if pair[0] in modules or pair[1] not in modules] == []


@pytest.mark.parametrize("tracked", [False, True])
def test_a_manifest_names_the_commit_of_this_project_and_not_of_a_checkout_that_holds_the_installed_package(
    installed, tmp_path, tracked
):
    settings = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    for words in (["init"], ["add", *(["packages"] if tracked else [])], ["commit", "--allow-empty", "-m", "theirs"]):
        subprocess.run(["git", *settings, *words], cwd=tmp_path, check=True, capture_output=True)
    code = "from cobalt.stage.manifest import *; open_manifest(Path('r.jsonl'), {})"
    run(tmp_path, "-c", code, PYTHONPATH=str(installed)).check_returncode()
    assert (json.loads((tmp_path / "r.run.json").read_text())["git"] is not None) == tracked


@pytest.mark.slow
def test_training_composes_its_configuration_from_the_installed_package(installed):
    pytest.importorskip("verl")
    code = (
        "from pathlib import Path; from cobalt.training import configuration as c;"
        "config = c.compose(c.TrainingSettings(Path('d'), 'm', Path('o')));"
        "print(c.VERL_ADDITIONS, config.reward.custom_reward_function.path)"
    )
    finished = run(installed, "-c", code, PYTHONPATH=str(installed))
    assert finished.returncode == 0, finished.stderr
    additions, reward = finished.stdout.split()
    assert additions == str(installed / "cobalt_verl") and reward == "pkg://cobalt_verl.code_reward_func_think"
