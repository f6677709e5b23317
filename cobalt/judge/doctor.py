"""A self-check of whether isolation holds on this machine.

Small programs try to leave the sandbox or to use more than the limits allow. They try what depends on the machine and
its kernel; the attack suite in the tests is longer. The service runs the checks at its start, and refuses to serve when
one fails.
"""

import contextlib
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


# What each program begins with: the lines of standard input, and what the checks use.
_HEAD = """
import os, time
secret, home, port = (input() for _ in range(3))
def works(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return False
    return True
def hold(bad):
    print(bad or "held")
"""
# Programs that print "held" where the claim holds.
_HELD = {
    "a program runs": "hold([])",
    "the host's files and home are hidden": """
paths = (secret, home, "/root", "/home", "/etc/passwd", "/proc/1/root" + secret)
hold([path for path in paths if works(open, path) or works(os.listdir, path)])
""",
    "the network is out of reach": """
import socket
families = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40)
opened = [family for family in families if works(socket.socket, family, socket.SOCK_DGRAM)]
hold(opened + ["a server on the host"] * works(socket.create_connection, ("127.0.0.1", int(port)), 1))
""",
    "a program has no privileges, and its system calls are filtered": """
import ctypes
libc = ctypes.CDLL(None)
sets = ctypes.create_string_buffer(24)
libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), sets)
hold("has privileges" if any(sets.raw) or libc.prctl(39, 0, 0, 0, 0) != 1 or libc.prctl(21) != 2 else "")
""",
    "other processes are hidden": """
seen = os.listdir("/proc") + ([] if os.getpid() == 1 and os.getppid() == 0 else ["a parent"])
hold(seen + [number for number in range(2, 5000) if works(os.kill, number, 0)])
""",
    "everything but a private temporary folder is read-only": """
library = os.path.dirname(os.__file__)
folders = ("/", "/usr", "/usr/lib", "/lib", "/etc", "/dev", "/proc", "/judge", "/judge/inside", "/python", library)
hold([folder for folder in folders if works(open, folder + "/planted", "w")])
""",
    "a fork bomb stops at the limit on processes": """
def start():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
hold(["4000 processes"] * all(works(start) for _ in range(4000)))
""",
    "nothing that a test leaves behind reaches the next": """
seen = [name for name in os.listdir("/tmp") + os.listdir("/dev/shm") if name != "main.py"]
open("/tmp/left", "w").write("x")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
hold(seen)
""",
}
# Programs that must reach the limit on memory.
_OVER_MEMORY = {
    "memory is limited": "x = bytearray(1 << 40)",
    "memory of several processes together is limited": """
for _ in range(3):
    if os.fork() == 0:
        break
x = bytearray({each})
for start in range(0, len(x), 4096):
    x[start] = 1
time.sleep(60)
""",
}

_COUNTED_BY = {
    "cgroup": "memory and processes are limited by the kernel, with a cgroup for each sandbox",
    "sum": "memory is limited by the judge, which adds it up every 50 ms (it misses part of what the kernel holds)",
}


async def examine(settings: JudgeSettings | None = None) -> AsyncGenerator[Finding, None]:
    """Run every check under the given settings; takes about two seconds.

    The first finding says whether a sandbox can be built at all. If it cannot, that finding is the only one.

    Raises:
        InfrastructureError: a sandbox broke for another reason than missing isolation.
    """
    base = settings if settings is not None else JudgeSettings()
    changes = {
        # On a busy machine even a small program takes seconds, which says nothing about isolation.
        "cpu_seconds": 10.0,
        "wall_seconds": 30.0,
        "memory_bytes": min(base.memory_bytes, 256 * MIB),
        "comparison": "strip",
        "concurrency": 1,
        "paper_guard": False,  # the guard would hide what the sandbox lets through
        "stdin": "file",
    }
    claim = "sandboxes can be built"
    async with contextlib.AsyncExitStack() as stack:
        try:
            judge = await stack.enter_async_context(LocalJudge(base.model_copy(update=changes)))
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
        stdin = f"{secret}\n{Path.home()}\n{server.getsockname()[1]}\n"
        # These run twice, since some checks are about what the first run leaves for the second.
        for held, code in _HELD.items():
            yield await _run(judge, held, code, stdin, [VerdictKind.PASSED] * 2)
        for limited, code in _OVER_MEMORY.items():
            yield await _run(judge, limited, code, stdin, [VerdictKind.MEMORY_LIMIT])


def _crashes() -> Finding:
    """Whether the kernel keeps a crashing program from the program or socket to which this machine hands crashes.

    The kernel asks only whether the limit on core dumps is 1, which a sandbox sets if it may.
    """
    pattern = ""
    with contextlib.suppress(OSError):
        pattern = Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8", errors="replace").strip()
    may_limit = resource.getrlimit(resource.RLIMIT_CORE)[1] > 0
    return Finding(
        "a crash hands nothing of a program to this machine",
        not pattern.startswith("@") and (may_limit or not pattern.startswith("|")),
        f"kernel.core_pattern is {pattern!r}: set one without '@', and with '|' start the judge with a hard limit on"
        " core dumps above 0 (systemd: LimitCORE=1)",
    )


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


async def _run(judge: LocalJudge, claim: str, code: str, stdin: str, expected: list[VerdictKind]) -> Finding:
    code = _HEAD + code.replace("{each}", str(judge.settings.memory_bytes // 2))
    result = await judge.judge(code, TestSuite((stdin,) * len(expected), ("held",) * len(expected)))
    for verdict, text, kind in zip(result.verdicts, result.feedback, expected, strict=True):
        if verdict.kind is not kind:
            return Finding(claim, False, f"{verdict.kind}: {' '.join(text.split())}"[:1000])
    return Finding(claim, True)
