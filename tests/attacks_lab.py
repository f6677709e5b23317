"""The place of the attack tests: a judge run by a chosen user, and a host with files and secrets to steal."""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest
from support import descendants

from cobalt.judge import VerdictKind

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
DEFAULT_SETTINGS = {"concurrency": 1}
REPOSITORY = Path(__file__).parent.parent
RUNNER = Path(__file__).parent / "attacks_runner.py"
SECONDS = 20.0  # after which a program that has no verdict never gets one

# A user without an entry in the password file: what a judge run by anyone but root is.
STRANGER = 54321
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("own",)


def memory_settings(accounting: str) -> dict[str, object]:
    """The settings of attacks on the memory limit, its enforcement chosen where that can be."""
    return MEMORY_SETTINGS | {"memory_accounting": accounting}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The judge's result for one program.

    Attributes:
        kinds, wall, feedback: One for each test; the second in seconds.
        error: What kept the judge from a verdict, if something did.
    """

    kinds: tuple[VerdictKind, ...]
    wall: list[float]
    feedback: list[str]
    error: str | None

    def __str__(self) -> str:
        return self.error or "\n".join(f"{kind}: {text}" for kind, text in zip(self.kinds, self.feedback, strict=True))


class Lab:
    """A process that judges as the given user; use as a context manager."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.restarts = 0  # sandboxes that the last programs cost
        self._may_lack_cgroups = False

    def __enter__(self) -> "Lab":
        with contextlib.ExitStack() as opened:
            self.folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="attacked-")))
            self.folder.chmod(0o755)
            self.secret = self.folder / "secret.txt"
            self.secret.write_text("secret", encoding="utf-8")
            self.server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
            self.abstract = opened.enter_context(socket.socket(socket.AF_UNIX))
            self.abstract.bind(f"\0attacked-{os.getpid()}")
            self.abstract.listen()
            self._process = self._start()
            self.pid = self._process.pid  # the judging process
            opened.callback(self._stop)
            if self.user == "ordinary":
                opened.enter_context(own_cgroups(self.pid))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def filled(self, code: str) -> str:
        """A program with the paths and secrets of this host filled in."""
        names = {
            "repository": str(REPOSITORY),
            "secret": str(self.secret),
            "home": str(Path.home()),
            "port": self.server.getsockname()[1],
            "abstract": self.abstract.getsockname()[1:].decode(),
            "niceness": os.nice(0),
        }
        for name, value in names.items():
            code = code.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", str(value))
        return code

    def run(
        self, code: str, given: tuple[str, ...] = ("",), expected: str = "held", settings: dict[str, object] = SETTINGS
    ) -> Outcome:
        """Judge a program on tests that all expect the same."""
        [outcome] = self.run_together([code], given, expected, settings)
        return outcome

    def run_asserted(self, code: str, script: str, check: str) -> Outcome:
        """Judge a program that defines `f` on one assertion test, twice: the second time after the check has run."""
        tests = {"inputs": [script] * 2, "outputs": [check] * 2, "fn_name": "f", "asserts": True}
        self._write({"settings": SETTINGS, "programs": [{"code": self.filled(code)} | tests], "seconds": SECONDS})
        [outcome] = self.receive()
        return outcome

    def run_together(self, codes: list[str], *tests: object, **options: object) -> list[Outcome]:
        """Judge programs at the same time; one after the other where there is one sandbox."""
        self.send(codes, *tests, **options)
        return self.receive()

    def send(
        self,
        codes: list[str],
        given: tuple[str, ...] = ("",),
        expected: str = "held",
        settings: dict[str, object] = PAIR_SETTINGS,
    ) -> None:
        """Have programs judged, to be followed by one call of `receive`."""
        if self.user == "ordinary":  # it may make cgroups, and is tried without them where a test does not ask for them
            settings = {"memory_accounting": "sum"} | settings
        programs = [{"code": self.filled(code), "inputs": given, "outputs": [expected] * len(given)} for code in codes]
        self._may_lack_cgroups = settings.get("memory_accounting") == "cgroup"
        self._write({"settings": settings, "programs": programs, "seconds": SECONDS})

    def receive(self) -> list[Outcome]:
        """The outcomes of the programs that were sent; skips the test where the machine lacks what it needs."""
        line = self._process.stdout.readline()
        assert line, "the judging process has ended"
        answer = json.loads(line)
        if "unsupported" in answer:
            # Not every machine lets this user make cgroups; whatever else a judge needs, the tests need too.
            (pytest.skip if self._may_lack_cgroups else pytest.fail)(answer["unsupported"])
        self.restarts = answer["restarts"]
        return [Outcome(**result | {"kinds": tuple(map(VerdictKind, result["kinds"]))}) for result in answer["results"]]

    def close_judges(self) -> None:
        """End all sandboxes; the process stays."""
        self._write({})
        self.receive()

    def processes(self) -> dict[int, dict[str, str]]:
        """The judging process's descendants, as the host sees them: fields of /proc/PID/status and stat, by PID."""
        facts = {}
        for pid in descendants(self.pid):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                facts[pid] = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line) | {
                    "group": fields[2],
                    "session": fields[3],
                    "autogroup": _read(f"/proc/{pid}/autogroup"),
                }
        return facts

    def tests(self, count: int) -> dict[int, dict[str, str]]:
        """The first processes of `count` running tests, in PID namespaces of their own below a sandbox's; waits."""
        deadline, before = time.monotonic() + 5, {}
        while True:
            processes = self.processes()
            depth = max((len(fact["NSpid"].split()) for fact in processes.values()), default=0)
            found = {
                pid: fact
                for pid, fact in processes.items()
                if len(numbers := fact["NSpid"].split()) == depth > _depth_here() + 1 and numbers[-1] == "1"
            }
            if len(found) == count and found == before:  # none is still giving up its privileges
                return found
            assert time.monotonic() < deadline, f"{len(found)} tests run"
            before = found
            time.sleep(0.02)

    def _start(self) -> subprocess.Popen[str]:
        place = self.folder / "visible"
        place.mkdir()
        interpreter, checkout, runner = Path(sys.executable), REPOSITORY, RUNNER
        packages = Path(pydantic.__file__).parent.parent
        user: dict[str, object] = {}
        if self.user == "ordinary":
            user = {"user": STRANGER, "group": STRANGER, "extra_groups": []}
            interpreter = interpreter.resolve()
            if not _open_to_others(interpreter):
                interpreter = copied_python(place / "python")
                for path in (place / "python").rglob("*"):  # it may evict the pages of what it owns
                    os.chown(path, STRANGER, STRANGER)
            if not _open_to_others(checkout / "cobalt") or not _open_to_others(RUNNER):
                checkout = place
                shutil.copytree(REPOSITORY / "cobalt", place / "cobalt")
                runner = Path(shutil.copy(RUNNER, place))
            if not _open_to_others(packages):
                pytest.fail(f"{packages} is closed to other users, so the judge cannot be attacked as one of them")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": f"{checkout}:{packages}",
            "JUDGE_TEST_SECRET": "secret",
        }
        return subprocess.Popen(
            [interpreter, "-B", runner],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", env=environment, **user,
        )  # fmt: skip

    def _stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, request: dict[str, object]) -> None:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def own_cgroups(pid: int) -> Iterator[None]:
    """Move a process that has just started into cgroups that its user may write to, where this machine has v1."""
    places = []
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in {"memory", "pids"}.intersection(controllers.split(",")):
            here = Path("/sys/fs/cgroup", controller, path.lstrip("/"))
            with contextlib.suppress(OSError):  # then the tests that ask for cgroups skip
                place = (here if here.is_dir() else Path("/sys/fs/cgroup", controller)) / f"attacked-{pid}"
                place.mkdir()
                places.append(place)
                for file in (place, *place.iterdir()):
                    os.chown(file, STRANGER, STRANGER)
                (place / "cgroup.procs").write_text(str(pid), encoding="utf-8")
    try:
        yield
    finally:
        for place in places:
            for process in (place / "cgroup.procs").read_text(encoding="utf-8").split():
                with contextlib.suppress(OSError):
                    (place.parent / "cgroup.procs").write_text(process, encoding="utf-8")
            for folder in (*place.iterdir(), place):
                if folder.is_dir():
                    with contextlib.suppress(OSError):
                        folder.rmdir()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


@functools.cache
def _depth_here() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return len(status.partition("NSpid:")[2].splitlines()[0].split())


def _open_to_others(path: Path) -> bool:
    """Whether every user may read a file or list a folder, as far as modes say."""
    wanted = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    above = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
    return above and path.stat().st_mode & wanted == wanted


def copied_python(target: Path) -> Path:
    """Copy this Python's installation, without packages; returns the copy's interpreter."""
    standard = Path(sysconfig.get_path("stdlib"))
    large = shutil.ignore_patterns("site-packages", "test", "config-*", "idlelib", "tkinter", "ensurepip")
    shutil.copytree(standard, target / "lib" / standard.name, ignore=large)
    for library in standard.parent.glob("libpython*"):
        shutil.copy(library, target / "lib")
    (target / "bin").mkdir()
    return Path(shutil.copy(Path(sys.executable).resolve(), target / "bin" / standard.name))
