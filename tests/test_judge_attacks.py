"""Programs that attack the sandbox: each has its expected verdict, and nothing of it remains."""

# Whole programs stand on one line each.
# ruff: noqa: E501, PTH208, UP031

import asyncio
import os
import socket
import tempfile
from pathlib import Path

import pytest

from cobalt.judge import JudgeSettings, LocalJudge, VerdictKind
from cobalt.problem import TestSuite

pytestmark = pytest.mark.sandbox

MIB = 1 << 20
SETTINGS = JudgeSettings(
    cpu_seconds=1.0,
    wall_seconds=1.5,
    memory_bytes=256 * MIB,
    output_bytes=MIB,
    file_bytes=8 * MIB,
    processes=16,
    concurrency=1,
)
REPOSITORY = Path(__file__).parent.parent

PASSED = VerdictKind.PASSED
WRONG = VerdictKind.WRONG_ANSWER
CRASHED = VerdictKind.RUNTIME_ERROR
SLOW = VerdictKind.TIME_LIMIT
WAITING = VerdictKind.WALL_LIMIT
FAT = VerdictKind.MEMORY_LIMIT
LOUD = VerdictKind.OUTPUT_LIMIT

# A program prints "held" when the wall it tried stands; the expected output of every test is "held".
REFUSED = """
import os, sys, errno
def refused(action, *arguments):
    try:
        return "got through: %r" % (action(*arguments),)
    except (OSError, ImportError, ValueError) as error:
        return None
def verdict(*outcomes):
    print(next((text for text in outcomes if text), "held"))
"""
SYSCALL = (
    REFUSED
    + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result
"""
)

READ_HOST = {
    "reads the repository": REFUSED + "verdict(refused(os.listdir, {repository!r}))",
    "reads a host file": REFUSED + "verdict(refused(open, {secret!r}))",
    "reads a home": REFUSED
    + "verdict(refused(os.listdir, {home!r}), refused(os.listdir, '/root'), refused(os.listdir, '/home'))",
    "reads the password file": REFUSED + "verdict(refused(open, '/etc/passwd'), refused(open, '/etc/shadow'))",
    "reads the host's temporary folder": REFUSED
    + "verdict(repr(os.listdir('/tmp')) if os.listdir('/tmp') != ['main.py'] else None)",
    "reads the environment": REFUSED
    + "verdict(os.environ.get('JUDGE_TEST_SECRET'), 'seen' if b'JUDGE_TEST_SECRET' in open('/proc/self/environ', 'rb').read() else None)",
    "reads the first process's environment": REFUSED
    + "data = b''.join(open(f'/proc/{n}/environ', 'rb').read() for n in os.listdir('/proc') if n.isdigit())\n"
    + "verdict('seen' if b'JUDGE_TEST_SECRET' in data else None)",
    "reads another process's command line": REFUSED
    + "verdict(*(n for n in os.listdir('/proc') if n.isdigit() and int(n) != os.getpid()))",
    "reaches out through a process's root": REFUSED + "verdict(refused(open, '/proc/1/root' + {secret!r}))",
    "reaches out through the working folder": REFUSED
    + "verdict(refused(open, '/proc/self/cwd/../..' + {secret!r}), refused(open, '../../..' + {secret!r}))",
    "searches every descriptor": REFUSED
    + "names = sorted(int(n) for n in os.listdir('/proc/self/fd'))\nverdict(repr(names) if [n for n in names if n > 3] else None)",
    "writes to inherited descriptors": REFUSED + "verdict(*(refused(os.write, n, b'{{}}') for n in range(3, 256)))",
    "reads the kernel's log": SYSCALL
    + "verdict(refused(open, '/dev/kmsg'), refused(open, '/proc/kmsg'), refused(call, 103, 10, 0, 0))",
    "reads memory devices": REFUSED
    + "verdict(*(refused(open, '/dev/' + n, 'rb') for n in ('mem', 'kmem', 'port', 'vda', 'sda', 'kvm', 'fuse')))",
    "reads kernel memory": REFUSED + "verdict(refused(lambda: open('/proc/kcore', 'rb').read(1)))",
    "finds the judge's expected outputs in memory": REFUSED
    + "import gc\nverdict(*(repr(o)[:80] for o in gc.get_objects() if isinstance(o, dict) and 'outputs' in o and 'inputs' in o))",
}
WRITE_HOST = {
    "writes into the interpreter": REFUSED
    + "verdict(refused(open, os.__file__, 'w'), refused(open, os.path.dirname(os.__file__) + '/planted.py', 'w'))",
    "writes into system folders": REFUSED
    + "verdict(*(refused(open, d + '/planted', 'w') for d in ('/', '/usr/lib', '/lib', '/etc', '/dev', '/judge', '/judge/inside')))",
    "remounts read-write": SYSCALL
    + "verdict(refused(call, 165, None, b'/', None, 32, None), refused(call, 165, None, b'/usr/lib', None, 4128, None))",
    "mounts a file system": SYSCALL
    + "verdict(refused(call, 165, b'none', b'/tmp', b'tmpfs', 0, None), refused(call, 430, b'tmpfs', 0))",
    "unmounts its own folder": SYSCALL + "verdict(refused(call, 166, b'/tmp', 2), refused(call, 166, b'/proc', 2))",
    "changes its root": SYSCALL + "verdict(refused(os.chroot, '/tmp'), refused(call, 155, b'/tmp', b'/tmp'))",
    "makes a device": REFUSED
    + "import stat\nverdict(refused(os.mknod, '/tmp/disk', stat.S_IFBLK | 0o666, os.makedev(254, 0)))",
    "sets kernel parameters": REFUSED
    + "verdict(*(refused(lambda: open('/proc/sys/' + n, 'w', 1).write('1\\n')) for n in ('kernel/core_pattern', 'kernel/hostname', 'vm/drop_caches', 'kernel/ns_last_pid')), refused(open, '/proc/sysrq-trigger', 'w'))",
    "writes to cgroups": REFUSED + "verdict(refused(os.listdir, '/sys/fs/cgroup'), refused(os.listdir, '/sys'))",
    "opens a file by handle": SYSCALL + "verdict(refused(call, 304, -100, ctypes.create_string_buffer(64), 0))",
}
NETWORK = {
    "connects to the host": REFUSED
    + "import socket\nverdict(refused(socket.create_connection, ('127.0.0.1', {port}), 0.5))",
    "connects to the world": REFUSED
    + "import socket\nverdict(refused(socket.create_connection, ('1.1.1.1', 53), 0.5))",
    "resolves a name": REFUSED + "import socket\nverdict(refused(socket.getaddrinfo, 'example.com', 80))",
    "connects to an abstract unix socket": REFUSED
    + "import socket\nverdict(refused(socket.socket(socket.AF_UNIX).connect, '\\0{abstract}'))",
    "talks to the machine's host by vsock": REFUSED
    + "import socket\nverdict(refused(socket.socket, 40, socket.SOCK_STREAM))",
    "opens a socket of the internet": REFUSED
    + "import socket\nverdict(refused(socket.socket), refused(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM))",
    "opens raw and packet sockets": REFUSED
    + "import socket\nverdict(refused(socket.socket, 17, 3), refused(socket.socket, 2, 3, 1), refused(socket.socket, 16, 3), refused(socket.socket, 38, 5))",
}
PRIVILEGES = {
    "becomes root": REFUSED + "verdict(refused(os.setuid, 0), refused(os.setgid, 0), refused(os.setgroups, [0]))",
    "makes namespaces": SYSCALL
    + "verdict(*(refused(call, 272, flag) for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000, 0x10020000)))",
    "clones into namespaces": SYSCALL
    + "verdict(refused(call, 56, 0x10000000 | 17, 0, 0, 0, 0), refused(call, 435, ctypes.create_string_buffer(88), 88))",
    "enters namespaces": SYSCALL + "verdict(refused(call, 308, os.open('/proc/self/ns/net', 0), 0))",
    "traces a process": SYSCALL + "verdict(refused(call, 101, 16, 1, 0, 0), refused(call, 101, 0, 0, 0, 0))",
    "reads another process's memory": SYSCALL
    + "verdict(refused(call, 310, 1, None, 0, None, 0, 0), refused(call, 311, 1, None, 0, None, 0, 0))",
    "keeps a secret in a keyring": SYSCALL
    + "verdict(refused(call, 248, b'user', b'note', b'secret', 6, -4), refused(call, 250, 0, -4, 1))",
    "loads a bpf program": SYSCALL + "verdict(refused(call, 321, 0, None, 0), refused(call, 298, None, 0, -1, -1, 0))",
    "uses io_uring and userfaultfd": SYSCALL
    + "verdict(refused(call, 425, 8, ctypes.create_string_buffer(120)), refused(call, 323, 0))",
    "makes memory files": REFUSED + "verdict(refused(os.memfd_create, 'hoard'))",
    "raises its limits": REFUSED
    + "import resource as r\nverdict(*(refused(r.setrlimit, k, (r.RLIM_INFINITY, r.RLIM_INFINITY)) for k in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_NPROC, r.RLIMIT_FSIZE)))",
    "raises its priority": REFUSED
    + "verdict(refused(os.nice, -5), refused(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10)))",
    "saves itself from the memory killer": REFUSED
    + "verdict(refused(lambda: open('/proc/self/oom_score_adj', 'w', 1).write('-1000\\n')))",
    "sets the clock": REFUSED + "import time\nverdict(refused(time.clock_settime, time.CLOCK_REALTIME, 0.0))",
    "reboots": SYSCALL + "verdict(refused(call, 169, 0xfee1dead, 672274793, 0x1234567, None))",
}
PROCESSES = {
    "kills its parent": REFUSED + "verdict(repr(os.getppid()) if os.getppid() else None)",
    "signals everyone": REFUSED + "import signal\nverdict(refused(os.kill, -1, signal.SIGKILL))",
    "kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nprint('held')",
    "kills itself by a signal that looks like the kernel's": SYSCALL
    + """
import struct
info = struct.pack("iiiii", 9, 0, 0x80, 0, 0) + bytes(108)
own = os.pidfd_open(os.getpid())
verdict(*(refused(call, *arguments) for arguments in (
    (129, os.getpid(), 9, info), (297, os.getpid(), os.getpid(), 9, info), (424, own, 9, info, 0))))
""",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('held')",
    "kills likely process numbers": REFUSED + "verdict(*(refused(os.kill, n, 9) for n in range(2, 3000)))",
    "leaves a daemon": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()
print("held")
""",
    "leaves zombies": "import os\nfor _ in range(8):\n    if os.fork() == 0: os._exit(0)\nprint('held')",
    "leaves a child that prints late": "import os, time\nprint('held', flush=True)\nif os.fork() == 0:\n    time.sleep(0.2)\n    os.write(1, b'late')\n    os._exit(0)",
    "leaves a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nprint('held')",
}
ENDS: dict[str, tuple[str, VerdictKind]] = {
    "loops": ("while True: pass", SLOW),
    "loops in many processes": ("import os\nfor _ in range(3): os.fork()\nwhile True: pass", SLOW),
    "loops in children while it waits": ("import os\nif os.fork() == 0:\n    while True: pass\nos.wait()\nprint('held')", SLOW),
    "loops in children that nobody waits for": (
        "import os, time\nfor _ in range(14):\n    child = os.fork()\n    if child == 0:\n        while time.process_time() < 0.09: pass\n        os._exit(0)\n"
        "    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\nprint('held')",
        SLOW,
    ),
    "has ended children taken away": ("import signal\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: print('held')", PASSED),
    "loops beyond signals": ("import signal\nfor n in (signal.SIGTERM, signal.SIGXCPU, signal.SIGALRM): signal.signal(n, signal.SIG_IGN)\nwhile True: pass", SLOW),
    "loops in C": ("sum(range(10**12))", SLOW),
    "computes at exit": ("import atexit\natexit.register(lambda: sum(range(10**12)))\nprint('held')", SLOW),
    "sleeps": ("import time\ntime.sleep(1000)", WAITING),
    "waits for a signal": ("import signal\nsignal.pause()", WAITING),
    "waits for a child that stopped": ("import os, signal\nchild = os.fork()\nif child == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)\nos.waitpid(child, 0)", WAITING),
    "deadlocks": ("import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()", WAITING),
    "never ends a thread": ("import threading\nthreading.Thread(target=threading.Event().wait).start()\nprint('held')", WAITING),
    "fills its memory": ("x = []\nwhile True: x.append(bytearray(1 << 20))", FAT),
    "asks for too much memory at once": ("x = bytearray(1 << 40)", FAT),
    "fills memory in many processes": (
        "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(100 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\ntime.sleep(1000)",
        FAT,
    ),
    "floods its output": ("while True: print('x' * 65536)", LOUD),
    "floods its output past errors": ("import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except OSError: pass", LOUD),
    "floods standard error": ("import sys\nwhile True: sys.stderr.write('x' * 65536)", CRASHED),
    "lowers its own limit on CPU time": ("import resource as r\ntry: r.setrlimit(r.RLIMIT_CPU, (1, 1))\nexcept (OSError, ValueError): print('held', r.getrlimit(r.RLIMIT_CPU)[0] == 1)", WRONG),
    "ends without output": ("import os\nos._exit(0)", WRONG),
    "closes its descriptors": ("import os\nos.closerange(0, 256)", WRONG),
    "crashes": ("import ctypes\nctypes.string_at(0)", CRASHED),
    "aborts": ("import os\nos.abort()", CRASHED),
    "overflows the C stack": ("import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(self, name): return getattr(self, name + 'x')\nA().y", CRASHED),
    "prints a forged verdict": ("print('{\"passing\": [true], \"kind\": \"passed\"}')", WRONG),
    "exits with a message of success": ("import sys\nprint('held')\nsys.exit(3)", CRASHED),
    "raises at exit after the right answer": ("import atexit\nprint('held')\natexit.register(lambda: 1/0)", PASSED),
    "tampers with the exit": ("import os, sys\nsys.excepthook = lambda *a: os._exit(0)\n1/0", WRONG),
    "tampers with builtins": ("import builtins, os\nbuiltins.compile = builtins.exec = os._exit = os.write = None\nprint('held')", PASSED),
    "reloads what was patched": ("import importlib, os\nimportlib.reload(os)\nprint('held')", PASSED),
    "forks through posix": ("import posix\nif posix.fork() == 0: posix._exit(0)\nposix.wait()\nprint('held')", PASSED),
    "looks at the frames above": (
        "import sys\nf = sys._getframe()\nseen = []\nwhile f: seen += list(f.f_locals) + list(f.f_globals); f = f.f_back\nprint('seen' if 'outputs' in seen or 'expected' in seen else 'held')",
        PASSED,
    ),
    "imports the judge": ("try:\n    import inside\nexcept ImportError:\n    try:\n        import zygote\n    except ImportError:\n        print('held')", PASSED),
}  # fmt: skip
BOMBS: dict[str, str] = {
    "forks without end": "import os\ntry:\n    for _ in range(1000):\n        if os.fork() == 0:\n            import time; time.sleep(1000)\nexcept OSError: print('held')",
    "starts threads without end": "import threading\ntry:\n    for _ in range(1000): threading.Thread(target=threading.Event().wait, daemon=True).start()\nexcept RuntimeError: print('held')",
    "opens files without end": "try:\n    files = [open('/dev/null') for _ in range(100000)]\nexcept OSError: print('held')",
    "writes a huge file": "try:\n    f = open('big', 'wb', 0)\n    while True: f.write(bytes(1 << 20))\nexcept OSError: print('held')",
    "writes many files": "try:\n    for n in range(10**6): open(f'f{n}', 'wb').write(b'x' * 4096)\nexcept OSError: print('held')",
    "makes shared memory": "import multiprocessing.shared_memory as m\ntry:\n    m.SharedMemory(create=True, size=1 << 30)\n    print('made')\nexcept OSError: print('held')",
}
PLANT = {
    "plants a module": "open('bisect.py', 'w').write('raise SystemExit(9)')\nopen('/dev/shm/heapq.py', 'w').write('raise SystemExit(9)')\nprint('held')",
    "rewrites itself": "open(__file__, 'w').write('raise SystemExit(9)')\nprint('held')",
    "makes a named semaphore": "import _multiprocessing as m\nm.SemLock(1, 1, 1, '/left', False)\nprint('held')",
    "leaves a unix socket": "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0left')\ns.listen()\nprint('held')",
    "fills the temporary folder": "open('full', 'wb').write(bytes(7 << 20))\nprint('held')",
    "poisons warm modules": "import bisect, math, random\nbisect.bisect = math.sqrt = random.random = None\nprint('held')",
    "sets the hook of imports": "import sys\nsys.meta_path.clear()\nsys.path.clear()\nsys.modules['math'] = None\nprint('held')",
}

# What every program must find, whatever ran before it.
PROBE = """
import bisect, heapq, math, os, random, socket
assert os.listdir("/tmp") == ["main.py"], os.listdir("/tmp")
assert [n for n in os.listdir("/proc") if n.isdigit()] == ["1"]
assert bisect.bisect([1, 2], 1) == 1 and math.sqrt(4) == 2 and random.random() < 1
s = socket.socket(socket.AF_UNIX)
s.bind("\\0left")
open("full", "wb").write(bytes(7 << 20))
print(input()[::-1])
"""


class Lab:
    """A judge in its own event loop, and a host with things to steal."""

    def __init__(self, folder: Path) -> None:
        self.secret = folder / "secret.txt"
        self.secret.write_text("secret", encoding="utf-8")
        self.server = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0judge-test-{os.getpid()}")
        self.abstract.listen()
        self.runner = asyncio.Runner()
        self.judge = LocalJudge(SETTINGS)
        self.runner.run(self.judge.__aenter__())

    def run(self, code: str, given: str = "") -> VerdictKind:
        result = self.runner.run(self.judge.judge(code, TestSuite((given,), ("held",))))
        self.feedback = result.feedback[0]
        return result.verdicts[0].kind

    def probe(self) -> None:
        assert self.run(PROBE, "dleh") is PASSED, self.feedback

    def close(self) -> None:
        self.runner.run(self.judge.close())
        self.runner.close()
        self.server.close()
        self.abstract.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    os.environ["JUDGE_TEST_SECRET"] = "secret"
    made = Lab(tmp_path_factory.mktemp("host"))
    yield made
    made.close()
    del os.environ["JUDGE_TEST_SECRET"]


def filled(lab: Lab, code: str) -> str:
    names = {
        "repository": str(REPOSITORY),
        "secret": str(lab.secret),
        "home": str(Path.home()),
        "port": lab.server.getsockname()[1],
        "abstract": f"judge-test-{os.getpid()}",
    }
    for name, value in names.items():
        code = code.replace("{%s!r}" % name, repr(value)).replace("{%s}" % name, str(value))
    return code


HELD = {**READ_HOST, **WRITE_HOST, **NETWORK, **PRIVILEGES, **PROCESSES, **BOMBS, **PLANT}


@pytest.mark.parametrize("name", HELD)
def test_wall_holds_against_a_program_that(lab, name):
    assert lab.run(filled(lab, HELD[name])) is PASSED, lab.feedback
    lab.probe()


@pytest.mark.parametrize("name", ENDS)
def test_verdict_is_right_for_a_program_that(lab, name):
    code, expected = ENDS[name]
    assert lab.run(code) is expected, lab.feedback
    lab.probe()


# Looks through its own memory for what earlier programs and tests may have left in that of the processes it came from.
SEARCH = """
given = input()
found = set()
for line in open("/proc/self/maps"):
    place, rights = line.split()[:2]
    begin, end = (int(number, 16) for number in place.split("-"))
    if "w" in rights:
        with open("/proc/self/mem", "rb", 0) as memory:
            try:
                memory.seek(begin)
                data = memory.read(end - begin)
            except OSError:
                continue
        for word in ("ecruos", "tuptuo", "tupni"):  # backwards: not to find itself
            if word[::-1].encode() + b"-of-another" in data:
                found.add(word[::-1])
print(sorted(found - {given.partition("-")[0]}))
"""


def test_memory_holds_nothing_of_earlier_programs_and_tests(lab):
    first = TestSuite(("input-of-another\n" * 200, "b\n", "c\n"), ("", "", ""))
    program = "# source-of-another\nprint('output-of-' + input().replace('input-of-', '').replace('b', 'another'))"
    second = TestSuite(("input-of-another\n", "b\n", "c\n"), ("[]", "[]", "[]"))

    async def course() -> list[VerdictKind]:
        await lab.judge.judge(program, first)
        return [verdict.kind for verdict in (await lab.judge.judge(SEARCH, second)).verdicts]

    assert lab.runner.run(course()) == [PASSED] * 3


def test_no_attack_cost_a_sandbox(lab):
    assert lab.judge.restarts == 0


def test_a_flood_leaves_the_judge_s_memory_flat(lab):
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    lab.run("print('x')")
    before = resident()
    for _ in range(5):
        assert lab.run("while True: print('x' * 65536)") is LOUD
    assert resident() - before < 50 * MIB


def test_nothing_remains_after_a_judge_is_closed():
    def traces() -> tuple[set[str], set[str], set[str], str]:
        me = os.getpid()
        children = set()
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == me and fields[0] != "Z":
                    children.add(name)
        folders = {
            f"{d}/{n}"
            for d in (tempfile.gettempdir(), "/dev/shm")
            for n in os.listdir(d)
            if "judge" in n or "sem." in n
        }
        return children, set(os.listdir("/proc/self/fd")), folders, Path("/proc/self/mountinfo").read_text()

    async def course() -> None:
        async with LocalJudge(SETTINGS) as judge:
            for name in ("leaves a daemon", "plants a module", "makes a named semaphore", "forks without end"):
                await judge.judge(HELD[name], TestSuite(("",), ("held",)))
            for name in ("sleeps", "fills memory in many processes"):
                await judge.judge(ENDS[name][0], TestSuite(("",), ("held",)))

    before = traces()
    asyncio.run(course())
    assert traces() == before
