"""Cgroups of sandboxes: where they can be made, what they limit, and that none remains."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cobalt.judge import JudgeSettings, LocalJudge, VerdictKind
from cobalt.judge.prelude import around_program
from cobalt.judge.sandbox import cgroups
from cobalt.judge.sandbox.cgroups import OVERHEAD_BYTES, OVERHEAD_PROCESSES, CgroupParent, SandboxCgroup, find_parent
from cobalt.judge.sandbox.sandbox import Sandbox
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError

MIB = 1 << 20


@pytest.fixture
def parent():
    parent = find_parent()
    if parent is None:
        pytest.skip("this process can make no cgroup with a memory and a pids controller")
    return parent


def left(parent, owner=None):
    """The names of the cgroups there of this process, or of another."""
    pattern = f"cobalt-judge-{owner or os.getpid()}-*"
    return [child.name for folder in {parent.memory, parent.pids} for child in folder.glob(pattern)]


# What a kernel shows in /proc/self/cgroup and /proc/self/mountinfo (lines apart by "|"), and the folders that follow.
V2, V1, AT = "cgroup2 cgroup2", "cgroup cgroup", "/sys/fs/cgroup"
PART = f"32 23 0:28 /docker/one {AT}/memory rw - {V1} rw,memory"
LAYOUTS = {
    "v2 in a namespace": ("0::/", f"30 23 0:26 / {AT} ro - cgroup2 cgroup rw", {None: AT, "pids": None}),
    "v1, joined controllers, and v2 without any": (
        "9:pids:/job|4:cpu,memory:/job/deep|0::/",
        f"31 23 0:27 / {AT}/pids rw - {V1} rw,pids|32 23 0:28 / {AT}/cpu,memory rw - {V1} rw,cpu,memory|"
        f"33 23 0:29 / {AT}/unified rw - {V2} rw",
        {"pids": f"{AT}/pids/job", "memory": f"{AT}/cpu,memory/job/deep", None: f"{AT}/unified"},
    ),
    "v1 in a container that sees a part": ("4:memory:/docker/one/deep", PART, {"memory": f"{AT}/memory/deep"}),
    "v1 in a container that sees another part": ("4:memory:/docker/other", PART, {"memory": None}),
}


def kernel_shows(files, monkeypatch):
    """Let files of /proc/self have these lines, apart by "|"."""
    read = Path.read_text

    def read_text(path, *arguments, **options):
        shown = files.get(path.name) if path.parent == Path("/proc/self") else None
        return read(path, *arguments, **options) if shown is None else shown.replace("|", "\n")

    monkeypatch.setattr(Path, "read_text", read_text)


@pytest.mark.parametrize("name", LAYOUTS)
def test_own_cgroup_is_found(name, monkeypatch):
    own, mounts, expected = LAYOUTS[name]
    kernel_shows({"cgroup": own, "mountinfo": mounts}, monkeypatch)
    for controller, folder in expected.items():
        assert cgroups.own_cgroup(controller) == (Path(folder) if folder else None)


@pytest.fixture
def made(parent):
    """The cgroups of a sandbox, which are gone at the end."""
    assert left(parent) == []
    cgroup = SandboxCgroup(parent)
    assert len(left(parent)) == len({parent.memory, parent.pids})
    yield cgroup
    cgroup.remove()
    assert left(parent) == []


def test_limits_leave_room_for_the_sandbox_itself(made, parent):
    for memory, processes in ((100, 16), (300, 16), (200, 20)):
        made.limit(memory * MIB, processes)
    [name] = set(left(parent))
    memory = parent.memory / name / ("memory.max" if parent.version == 2 else "memory.limit_in_bytes")
    assert int(memory.read_text()) == 200 * MIB + OVERHEAD_BYTES
    assert int((parent.pids / name / "pids.max").read_text()) == 20 + OVERHEAD_PROCESSES


HOARD = "import sys; sys.stdin.read(1); x = bytearray(200 << 20); print(len(x))"


def test_the_kernel_ends_what_exceeds_the_limit_and_counts_it(made):
    made.limit(16 * MIB, 16)
    assert made.kills() == 0
    process = subprocess.Popen([sys.executable, "-S", "-c", HOARD], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    made.add(process.pid)
    process.communicate(b"x", timeout=60)
    assert process.returncode == -9
    assert made.kills() == 1


def test_cgroups_of_dead_judges_are_removed_and_those_of_living_judges_stay(made, parent):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folders = {parent.memory, parent.pids}
    for folder in folders:
        (folder / f"cobalt-judge-{dead.pid}-0").mkdir()
    assert find_parent() == parent
    assert left(parent, dead.pid) == []
    assert len(left(parent)) == len(folders)


def test_under_v2_a_process_alone_in_its_cgroup_makes_cgroups_beside_the_child_it_enters(tmp_path, monkeypatch):
    """A folder that looks like a delegated cgroup; the kernel makes the files of a new one."""
    own, make = tmp_path / "user", Path.mkdir

    def mkdir(folder, *arguments, **options):
        make(folder, *arguments, **options)
        for name in ("cgroup.procs", "cgroup.subtree_control", "memory.max", "memory.swap.max", "pids.max"):
            (folder / name).touch()
        (folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n")
        (folder / "cgroup.controllers").write_text("cpu memory pids" if folder == own else "")

    shown = {"cgroup": "0::/user", "mountinfo": f"30 23 0:26 / {tmp_path} rw - {V2} rw"}
    kernel_shows(shown, monkeypatch)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    own.mkdir()
    for others, entered in (("1\n", False), ("", True)):
        (own / "cgroup.procs").write_text(f"{os.getpid()}\n{others}")
        assert cgroups.enter_delegated() is entered
    assert (own / "cobalt-supervisor" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    shown["cgroup"] = "0::/user/cobalt-supervisor"
    assert not cgroups.enter_delegated()
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)  # the kernel removes the files, too
    (own / "cgroup.subtree_control").write_text("")
    assert find_parent() is None and not (own / "cgroup.subtree_control").read_text()  # a parent is not changed
    (own / "cgroup.subtree_control").write_text("memory pids")  # as the kernel shows it
    parent = find_parent()
    assert parent == CgroupParent(2, own, own)
    made = SandboxCgroup(parent)
    made.limit(100 * MIB, 16)
    made.add(1234)
    [folder] = own.glob("cobalt-judge-*")
    limits = [100 * MIB + OVERHEAD_BYTES, 0, 16 + OVERHEAD_PROCESSES, 1234]
    names = ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs")
    assert [(folder / name).read_text() for name in names] == list(map(str, limits))
    assert made.kills() == 2
    made.remove()
    assert not folder.exists()


async def test_without_cgroups_the_setting_cgroup_is_refused_and_auto_falls_back_to_sum(monkeypatch):
    monkeypatch.setattr("cobalt.judge.local.find_parent", lambda: None)
    async with LocalJudge(JudgeSettings(memory_accounting="auto", concurrency=1)) as judge:
        assert judge.memory_accounting == "sum"
    with pytest.raises(UserError):
        await LocalJudge(JudgeSettings(memory_accounting="cgroup", concurrency=1)).__aenter__()


TWO_HOARDS = "import os, time\nos.fork()\nx = bytearray(120 << 20)\nx[::4096] = b'x' * len(x[::4096])\ntime.sleep(9)"


@pytest.mark.sandbox
async def test_no_cgroup_remains_after_judges_are_closed(parent):
    settings = JudgeSettings(memory_accounting="cgroup", memory_bytes=128 * MIB, concurrency=2, cpu_seconds=2)
    async with LocalJudge(settings) as judge:
        assert len(left(parent)) == 2 * len({parent.memory, parent.pids})
        result = await judge.judge(TWO_HOARDS, TestSuite(("",), ("",)))
    assert result.verdicts[0].kind is VerdictKind.MEMORY_LIMIT
    assert left(parent) == []


class OneKill:
    """A cgroup in which the kernel has ended one process."""

    kills = staticmethod(itertools.repeat(1).__next__)
    add = limit = raise_to = remove = staticmethod(lambda *_: None)


@pytest.mark.sandbox
@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "while True: pass", "print('x' * 9999999)", ""])
async def test_a_program_of_which_the_kernel_has_ended_a_process_is_over_its_memory_limit_however_it_ends(
    code, monkeypatch
):
    """On a busy machine the kernel is faster than the judge's check, and the other processes reach another limit."""
    limits = JudgeSettings(cpu_seconds=1, wall_seconds=1, output_bytes=1 << 20)
    monkeypatch.setattr("cobalt.judge.sandbox.sandbox.SandboxCgroup", lambda parent: OneKill())
    sandbox = Sandbox(limits, CgroupParent(2, Path(), Path()))
    await sandbox.start()
    try:
        around = around_program(TestSuite((), ()), limits)
        async with sandbox.program(code.encode(), limits, around) as failure:
            assert (failure, (await sandbox.run(b"")).end) == ("", "memory")
    finally:
        await sandbox.close()
