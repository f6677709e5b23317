"""A self-check of whether isolation holds on this machine.

It runs small programs that try to leave the sandbox or to use more than the limits allow, and reports what happened.
The service runs it at its start and refuses to serve when a check fails. It is not a proof: the attack suite in the
tests is longer.
"""

import asyncio
import contextlib
import itertools
import os
import resource
import socket
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from cobalt.judge.local import LocalJudge
from cobalt.judge.settings import MIB, JudgeSettings
from cobalt.judge.verdict import VerdictKind
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome: what should hold, whether it holds and, if not, what was seen."""

    claim: str
    holds: bool
    seen: str = ""


@dataclass(frozen=True, slots=True)
class _Check:
    claim: str
    code: str
    expected: VerdictKind = VerdictKind.PASSED


# What each program begins with: the lines of standard input, and what the checks use.
_HEAD = """
import os, time
secret, home, port, private = (input() for _ in range(4))
def works(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return False
    return True
def hold(bad):
    print(bad or "held")
"""
_HOST_FILE = """
paths = (secret, home, "/root", "/home", "/etc/passwd", "/proc/1/root" + secret)
hold([path for path in paths if works(open, path) or works(os.listdir, path)])
"""
_HOME_ELSEWHERE = """
tops = [top for top in ("/python", "/packages", "/usr/lib", "/usr/lib64") if os.path.isdir(top)]
entries = [entry for top in tops for entry in os.scandir(top)]
entries += [entry for one in entries if one.path.startswith("/python") and one.is_dir() for entry in os.scandir(one)]
stats = [(one.path, one.stat(follow_symlinks=False)) for one in entries]
hold([path for path, one in stats if "%s:%s" % (one.st_dev, one.st_ino) in private.split()])
"""
_DEVICES = """
null, zero, full = open("/dev/null", "r+b", 0), open("/dev/zero", "rb", 0), open("/dev/full", "wb", 0)
used = null.write(b"x") == 1 and null.read() == b"" and zero.read(1) == bytes(1) and not works(full.write, b"x")
names = {"full", "null", "random", "urandom", "zero"}
changed = [name for name in names if works(os.utime, "/dev/" + name)]
others = set(os.listdir("/dev")) - names - {"shm", "stderr", "stdin", "stdout"}
hold([] if used and not changed and not others else (used, changed, others))
"""
_PIPES = """
ours, theirs = os.pipe()
os.write(theirs, bytes(30000))
whole = len(os.read(ours, 30000)) == 30000
for number in range(8):
    if os.fork() == 0:
        count = 0
        while count < 60 and works(os.pipe):
            count += 1
        open(str(number), "w").write("x" * count)
        time.sleep(0.2)
        os._exit(0)
for number in range(8):
    os.wait()
together = sum(os.path.getsize(str(number)) for number in range(8))
hold([] if whole and (os.getuid() != 0 or together < 320) else (whole, together))
"""
_ENVIRONMENT = """
known = {"HOME", "LANG", "LC_CTYPE", "LD_BIND_NOW", "LD_LIBRARY_PATH", "OPENBLAS_NUM_THREADS", "PWD", "PYTHONHASHSEED"}
hold(sorted(set(os.environ) - known))
"""
_NETWORK = """
import socket
families = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40)
opened = [family for family in families if works(socket.socket, family, socket.SOCK_DGRAM)]
hold(opened + ["a server on the host"] * works(socket.create_connection, ("127.0.0.1", int(port)), 1))
"""
_PRIVILEGES = """
import ctypes
libc = ctypes.CDLL(None)
sets = ctypes.create_string_buffer(24)
libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), sets)
hold("has privileges" if any(sets.raw) or libc.prctl(39, 0, 0, 0, 0) != 1 or libc.prctl(21) != 2 else "")
"""
_PROCESSES = """
seen = os.listdir("/proc") + ([] if os.getpid() == 1 and os.getppid() == 0 else ["a parent"])
hold(seen + [number for number in range(2, 5000) if works(os.kill, number, 0)])
"""
_KERNEL_OBJECTS = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
numbers = {
    "x86_64": (29, 64, 68, 240, 253, 294, 278, 275, 73, 319, 206, 46, 49, 425, 248, 298, 323),
    "aarch64": (194, 190, 186, 180, 26, 75, 76, 32, 279, 0, 211, 200, 425, 217, 241, 282),
}[platform.machine()]
hold([number for number in numbers if libc.syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1])
"""
_JUDGE_FILES = """
import importlib.util
seen = [name for name in ("/judge", "/tmp/inside") if os.path.lexists(name)]
hold(seen + ["a module"] * (importlib.util.find_spec("inside") is not None))
"""
_READ_ONLY = """
library = os.path.dirname(os.__file__)
folders = ("/", "/usr", "/usr/lib", "/lib", "/etc", "/dev", "/proc", "/judge", "/judge/inside", "/python", library)
hold([folder for folder in folders if works(open, folder + "/planted", "w")])
"""
_FORK_BOMB = """
def start():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
hold(["4000 processes"] * all(works(start) for _ in range(4000)))
"""
_NOTHING_STAYS = """
seen = [name for name in os.listdir("/tmp") + os.listdir("/dev/shm") if name != "main.py"]
open("/tmp/left", "w").write("x")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
hold(seen)
"""
_TOGETHER = """
for _ in range(3):
    if os.fork() == 0:
        break
x = bytearray({each})
for start in range(0, len(x), 4096):
    x[start] = 1
time.sleep(60)
"""

_CHECKS = (
    _Check("a program runs", "hold([])"),
    _Check("the host's files and home are hidden", _HOST_FILE),
    _Check("no part of the home is among the interpreter's files and packages", _HOME_ELSEWHERE),
    _Check("the devices that programs need work, and there are no others", _DEVICES),
    _Check("a program's pipes take no room from those of other programs", _PIPES),
    _Check("the host's environment is hidden", _ENVIRONMENT),
    _Check("the network is out of reach", _NETWORK),
    _Check("a program has no privileges, and its system calls are filtered", _PRIVILEGES),
    _Check("system calls that make lasting kernel objects are refused", _KERNEL_OBJECTS),
    _Check("other processes are hidden", _PROCESSES),
    _Check(
        "a test has a session and a process group of its own",
        'hold("" if os.getsid(0) == os.getpgid(0) == os.getpid() else (os.getsid(0), os.getpgid(0)))',
    ),
    _Check("the judge's own files are hidden", _JUDGE_FILES),
    _Check("everything but a private temporary folder is read-only", _READ_ONLY),
    _Check("a fork bomb stops at the limit on processes", _FORK_BOMB),
    _Check("nothing that a test leaves behind reaches the next", _NOTHING_STAYS),
    _Check("memory is limited", "x = bytearray(1 << 40)", VerdictKind.MEMORY_LIMIT),
    _Check("memory of several processes together is limited", _TOGETHER, VerdictKind.MEMORY_LIMIT),
    _Check("output is limited", "while True: print('x' * 65536)", VerdictKind.OUTPUT_LIMIT),
    _Check("an endless loop ends at the CPU limit", "while True: pass", VerdictKind.TIME_LIMIT),
)
_SLEEPS = _Check("a sleeping program ends at the wall limit", "time.sleep(600)", VerdictKind.WALL_LIMIT)

_COUNTED_BY = {
    "cgroup": "memory and processes are limited by the kernel, with a cgroup for each sandbox",
    "sum": "memory is limited by the judge, which adds it up every 50 ms (it misses part of what the kernel holds)",
}

_BRIEF = {"cpu_seconds": 0.5, "wall_seconds": 1.0}
# On a busy machine even a small program takes seconds, which says nothing about isolation.
_PATIENT = {"cpu_seconds": 10.0, "wall_seconds": 30.0}


async def examine(settings: JudgeSettings | None = None) -> AsyncGenerator[Finding, None]:
    """Run every check under the given settings; takes about two seconds.

    The checks of time limits have short ones, and the other checks long ones.

    The first finding says whether a sandbox can be built at all. If it cannot, that finding is the only one.

    Raises:
        InfrastructureError: a sandbox broke for another reason than missing isolation.
    """
    base = settings if settings is not None else JudgeSettings()
    changes = {
        "memory_bytes": min(base.memory_bytes, 256 * MIB),
        "output_bytes": min(base.output_bytes, MIB),
        "comparison": "strip",
        "concurrency": 1,
        "paper_guard": False,  # the guard would hide what the sandbox lets through
        "stdin": "file",
    }
    given = {name: value for name, value in base if name in JudgeSettings.model_fields}
    patient, brief = (JudgeSettings.model_validate(given | changes | limits) for limits in (_PATIENT, _BRIEF))
    claim = "sandboxes can be built"
    async with contextlib.AsyncExitStack() as stack:
        try:
            judge = await stack.enter_async_context(LocalJudge(patient))
            busy = await stack.enter_async_context(LocalJudge(brief))
            idle = await stack.enter_async_context(LocalJudge(brief))
        except UserError as error:
            yield Finding(claim, False, str(error))
            return
        yield Finding(claim, True)
        yield Finding(_COUNTED_BY[judge.memory_accounting], True)
        yield _crashes()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        secret = Path(folder) / "secret.txt"
        secret.write_text("secret", encoding="utf-8")
        stdin = f"{secret}\n{Path.home()}\n{server.getsockname()[1]}\n{_private()}\n"
        sleeping = asyncio.create_task(_run(idle, _SLEEPS, stdin))  # meanwhile the others run
        stack.push_async_callback(_ended, sleeping)
        for check in _CHECKS:
            yield await _run(busy if check.expected is VerdictKind.TIME_LIMIT else judge, check, stdin)
        yield await sleeping


def _private() -> str:
    """Device and inode of each entry of this user's home, by which a program can be asked whether it sees one."""
    numbers = []
    with contextlib.suppress(OSError):
        for entry in itertools.islice(os.scandir(Path.home()), 1000):
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                numbers.append(f"{facts.st_dev}:{facts.st_ino}")
    return " ".join(numbers)


def _crashes() -> Finding:
    """Whether the kernel keeps what a crashing program holds from the program that this machine hands crashes to.

    The kernel asks only the limit on core dumps, and there only whether it is 1, which a sandbox sets if it may.
    """
    claim = "a crash hands nothing of a program to this machine"
    try:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return Finding(claim, True)
    advice = ""
    if pattern.startswith("@"):
        advice = "a socket that gets each crash: set another one"
    if pattern.startswith("|") and resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        advice = (
            "and this process may not raise its limit on core dumps from 0 to the 1 that turns it off: start the judge"
            " with a hard limit above 0 (systemd: LimitCORE=1)"
        )
    return Finding(claim, not advice, f"kernel.core_pattern is {pattern!r}, {advice}" if advice else "")


async def require_isolation(settings: JudgeSettings) -> None:
    """Raise unless every check holds; does nothing under the `unsafe` setting.

    Raises:
        UserError: a check failed; the message names it.
    """
    if settings.unsafe:
        return
    async with contextlib.aclosing(examine(settings)) as findings:
        async for finding in findings:
            if not finding.holds:
                raise UserError(
                    f"programs cannot be isolated on this machine: the check that {finding.claim} failed "
                    f"({finding.seen}); run `python -m cobalt.judge doctor` for the details"
                )


async def _ended(task: "asyncio.Task[Finding]") -> None:
    """End a task, whatever its state."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _run(judge: LocalJudge, check: _Check, stdin: str) -> Finding:
    # Twice, since some checks are about what the first run leaves for the second.
    code = _HEAD + check.code.replace("{each}", str(judge.settings.memory_bytes // 2))
    result = await judge.judge(code, TestSuite((stdin, stdin), ("held", "held")))
    for verdict, text in zip(result.verdicts, result.feedback, strict=True):
        if verdict.kind is not check.expected:
            return Finding(check.claim, False, f"{verdict.kind}: {text}"[:1000])
    return Finding(check.claim, True)


def summary(findings: list[Finding]) -> str:
    """One sentence on all findings together."""
    failed = sum(not finding.holds for finding in findings)
    if failed:
        return (
            f"Isolation does NOT hold here: {failed} of {len(findings)} checks failed. Do not judge untrusted programs."
        )
    return f"Isolation holds here: all {len(findings)} checks passed (user {os.geteuid()})."
