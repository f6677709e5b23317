"""The place of the attack tests: a judge run by a chosen user, and a host with files and secrets to steal."""

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest
from support import ROOT, descendants

from cobalt.judge import ExecResult, VerdictKind

MIB = 1 << 20
SETTINGS = {
    "cpu_seconds": 1.0,
    "wall_seconds": 1.5,
    "memory_bytes": 256 * MIB,
    "output_bytes": MIB,
    "file_bytes": 8 * MIB,
    "processes": 16,
    "concurrency": 1,
}
# Room for programs that work hard to hold more memory than they may.
MEMORY_SETTINGS = SETTINGS | {
    "cpu_seconds": 9.0,  # an attack must reach the limit on memory first, on a busy machine as well
    "wall_seconds": 9.0,
    "memory_bytes": 128 * MIB,
    "file_bytes": 48 * MIB,
    "processes": 32,
}
PAIR_SETTINGS = SETTINGS | {"concurrency": 2, "processes": 32, "cpu_seconds": 3.0, "wall_seconds": 3.0}
PAIR_SETTINGS |= {"memory_bytes": 1024 * MIB}
SECONDS = 20.0  # after which a program that has no verdict never gets one

# A user without an entry in the password file: what a judge run by anyone but root is.
UNKNOWN_USER = 54321
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("own",)


def kinds(result: ExecResult) -> tuple[VerdictKind, ...]:
    """The kinds of a result's verdicts."""
    return tuple(verdict.kind for verdict in result.verdicts)


class Lab:
    """A process that judges as the given user, until `opened` is closed."""

    def __init__(self, user: str, opened: contextlib.ExitStack) -> None:
        self.user = user
        self.restarts = 0  # sandboxes that the last programs cost
        self._may_lack_cgroups = False
        self.folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="attacked-")))
        self.folder.chmod(0o755)
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        self.temporary.chmod(0o777)
        self.secret = self.folder / "secret.txt"
        self.secret.write_text("secret", encoding="utf-8")
        self.server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.abstract = opened.enter_context(socket.socket(socket.AF_UNIX))
        self.abstract.bind(f"\0attacked-{os.getpid()}")
        self.abstract.listen()
        self._process = opened.enter_context(self._started())
        self.pid = self._process.pid  # the judging process
        if self.user == "ordinary":
            opened.enter_context(own_cgroups(self.pid))
        opened.callback(self._process.communicate)  # which lets it end

    def filled(self, code: str) -> str:
        """A program with the paths and secrets of this host filled in."""
        names = {
            "repository": str(ROOT),
            "secret": str(self.secret),
            "home": str(Path.home()),
            "port": self.server.getsockname()[1],
            "abstract": self.abstract.getsockname()[1:].decode(),
            "niceness": os.nice(0),
        }
        for name, value in names.items():
            code = code.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", str(value))
        return code

    def run(self, code: str, *tests: object, settings=SETTINGS, **fields: object) -> ExecResult:
        """Judge a program; the arguments are those of `send`."""
        self.send([code], *tests, settings=settings, **fields)
        [result] = self.receive()
        return result

    def send(self, codes, inputs=("",), expected="held", settings=PAIR_SETTINGS, **fields: object) -> None:
        """Have programs judged at the same time, on tests that expect the same, to be followed by one `receive`.

        `fields` are further ones of their suite.
        """
        if self.user == "ordinary":  # it may make cgroups, and is tried without them where a test does not ask for them
            settings = {"memory_accounting": "sum"} | settings
        tests = {"inputs": inputs, "outputs": [expected] * len(inputs)} | fields
        self._may_lack_cgroups = settings.get("memory_accounting") == "cgroup"
        programs = [{"code": self.filled(code)} | tests for code in codes]
        self._write({"settings": settings, "programs": programs, "seconds": SECONDS})

    def receive(self) -> list[ExecResult]:
        """The results of the programs that were sent; skips the test where the machine lacks what it needs."""
        line = self._process.stdout.readline()
        assert line, "the judging process has ended"
        answer = json.loads(line)
        if "unsupported" in answer:
            # Not every machine lets this user make cgroups; whatever else a judge needs, the tests need too.
            (pytest.skip if self._may_lack_cgroups else pytest.fail)(answer["unsupported"])
        self.restarts = answer["restarts"]
        assert "error" not in answer, answer["error"]
        return [ExecResult.from_record(result) for result in answer["results"]]

    def close_judges(self) -> None:
        """End all sandboxes; the process stays."""
        self._write({"settings": None})
        self.receive()

    def _write(self, request: dict[str, object]) -> None:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def processes(self) -> dict[int, dict[str, str]]:
        """The judging process's descendants, as the host sees them: fields of /proc/PID/status and stat, by PID."""
        facts = {}
        for pid in descendants(self.pid):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                autogroup = Path(f"/proc/{pid}/autogroup")  # not in every kernel
                facts[pid] = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line) | {
                    "parent": fields[1],
                    "group": fields[2],
                    "session": fields[3],
                    "autogroup": autogroup.read_text(encoding="utf-8").strip() if autogroup.exists() else "",
                }
        return facts

    def tests(self, count: int) -> dict[int, dict[str, str]]:
        """The first processes of `count` running tests, in PID namespaces of their own below a sandbox's; waits."""
        deadline, before = time.monotonic() + 5, {}
        while True:
            numbers = {pid: (fact, fact["NSpid"].split()) for pid, fact in self.processes().items()}
            depth = max((len(own) for _, own in numbers.values()), default=0)
            deepest = {pid: fact for pid, (fact, own) in numbers.items() if len(own) == depth and own[-1] == "1"}
            if depth > _depth_here() + 1 and len(deepest) == count and deepest == before:
                return deepest  # none is still giving up its privileges
            assert time.monotonic() < deadline, f"{len(deepest)} tests run"
            before = deepest
            time.sleep(0.02)

    def _started(self) -> subprocess.Popen[str]:
        interpreter, sources, user = Path(sys.executable), ROOT, {}
        packages = Path(pydantic.__file__).parent.parent
        runner = Path(__file__).with_name("attacks_runner.py")
        if self.user == "ordinary":
            # Copies, because homes are closed to others; a judge may evict the pages of what its user owns.
            sources = self.folder / "visible"
            interpreter = copied_python(sources / "python")
            for path in (sources / "python").rglob("*"):
                os.chown(path, UNKNOWN_USER, UNKNOWN_USER)
            shutil.copytree(ROOT / "cobalt", sources / "cobalt")
            runner = shutil.copy(runner, sources)
            user = {"user": UNKNOWN_USER, "group": UNKNOWN_USER, "extra_groups": []}
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": f"{sources}:{packages}",  # packages must be open to every user
            "JUDGE_TEST_SECRET": "secret",
        }
        return subprocess.Popen(
            [interpreter, "-B", runner],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", env=environment, **user,
        )  # fmt: skip


@contextlib.contextmanager
def own_cgroups(pid: int) -> Iterator[None]:
    """Move a process that has just started into cgroups that its user may write to, where this machine has v1."""
    groups = []
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in {"memory", "pids"}.intersection(controllers.split(",")):
            here = Path("/sys/fs/cgroup", controller, path.lstrip("/"))
            with contextlib.suppress(OSError):  # then the tests that ask for cgroups skip
                group = (here if here.is_dir() else Path("/sys/fs/cgroup", controller)) / f"attacked-{pid}"
                group.mkdir()
                groups.append(group)
                for file in (group, *group.iterdir()):
                    os.chown(file, UNKNOWN_USER, UNKNOWN_USER)
                (group / "cgroup.procs").write_text(str(pid), encoding="utf-8")
    try:
        yield
    finally:
        for group in groups:
            for process in (group / "cgroup.procs").read_text(encoding="utf-8").split():
                with contextlib.suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(process, encoding="utf-8")
            for folder in (*group.iterdir(), group):
                if folder.is_dir():
                    with contextlib.suppress(OSError):
                        folder.rmdir()


@functools.cache
def _depth_here() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return len(status.partition("NSpid:")[2].splitlines()[0].split())


def copied_python(target: Path) -> Path:
    """Copy this Python's installation, without packages; returns the copy's interpreter."""
    standard = Path(sysconfig.get_path("stdlib"))
    large = shutil.ignore_patterns("site-packages", "test", "config-*", "idlelib", "tkinter", "ensurepip")
    shutil.copytree(standard, target / "lib" / standard.name, ignore=large)
    for library in standard.parent.glob("libpython*"):
        shutil.copy(library, target / "lib")
    (target / "bin").mkdir()
    return Path(shutil.copy(Path(sys.executable).resolve(), target / "bin" / standard.name))
