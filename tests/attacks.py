"""Programs that attack the sandbox, as data: a name, a program, and the verdicts that show that isolation holds.

A program prints "held" when the isolation that it attacked holds, which is what every test expects. Each program bounds
what it does, so that a sandbox that fails costs the machine some hundred MiB or processes and no more. System calls
have the numbers of x86_64.
"""

# Whole programs stand on one line each.
# ruff: noqa: E501

from dataclasses import dataclass

from cobalt.judge import VerdictKind

PASSED = VerdictKind.PASSED
WRONG = VerdictKind.WRONG_ANSWER
CRASHED = VerdictKind.RUNTIME_ERROR
SLOW = VerdictKind.TIME_LIMIT
WAITING = VerdictKind.WALL_LIMIT
FAT = VerdictKind.MEMORY_LIMIT
LOUD = VerdictKind.OUTPUT_LIMIT


@dataclass(frozen=True)
class Attack:
    """A program, and how it must end.

    Attributes:
        code: The program; `{secret!r}` and the like stand for what `attacks_lab` puts there.
        expected: The verdicts that show that isolation holds.
    """

    code: str
    expected: tuple[VerdictKind, ...] = (PASSED,)


REFUSED = """
import os, sys, errno
def refused(action, *arguments):
    try:
        return "got through: %r" % (action(*arguments),)
    except (OSError, ImportError, ValueError) as error:
        return None
def names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []
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
def prctl(*arguments):
    result = libc.prctl(*arguments, *(0,) * (5 - len(arguments)))
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result
"""
)
PAIR = SYSCALL + "import fcntl, socket, struct\na, b = socket.socketpair()\n"

NAMED = """
import fcntl, importlib, mmap, resource as r, select, signal, socket, stat, struct, termios, time
def named(name, *outcomes):
    return next((f"{name}: {text}" for text in outcomes if text), None)
"""

# Expressions, tried one after the other in one program for each kind, which names one that got through.
ATTEMPTS = {
    "read host": {
        "reads the repository": "refused(os.listdir, {repository!r})",
        "reads a host file": "refused(open, {secret!r})",
        "reads a home": "refused(os.listdir, {home!r}), refused(os.listdir, '/root'), refused(os.listdir, '/home')",
        "reads the password file": "refused(open, '/etc/passwd'), refused(open, '/etc/shadow')",
        "reads the host's temporary folder": "repr(os.listdir('/tmp')) if os.listdir('/tmp') != ['main.py'] else None",
        "sees another process": "*(n for n in names('/proc') if n.isdigit() and int(n) != os.getpid()), *(refused(os.kill, n, 0) for n in range(2, 3000)), refused(os.kill, -1, 0)",
        "reaches out through a process's root": "*(refused(open, f'/proc/{n}/root' + {secret!r}) for n in ('1', 'self', 'thread-self'))",
        "reaches out through the working folder": "refused(open, '/proc/self/cwd/../..' + {secret!r}), refused(open, '../../..' + {secret!r})",
        "writes to inherited descriptors": "*(refused(os.write, n, b'{{}}') for n in range(3, 256))",
        "reads the kernel's log": "refused(open, '/dev/kmsg'), refused(open, '/proc/kmsg'), refused(call, 103, 10, 0, 0)",
        "reads memory devices": "*(refused(open, '/dev/' + n, 'rb') for n in ('mem', 'kmem', 'port', 'vda', 'sda', 'kvm', 'fuse'))",
        "reads kernel memory": "refused(lambda: open('/proc/kcore', 'rb').read(1))",
    },
    "judge files": {
        "looks for the judge's folder": "refused(os.lstat, '/judge')",
        "reads the judge's files": "*(refused(open, folder + '/' + name + '.py') for folder in ('/judge', '/judge/inside', '/inside') for name in ('start', 'zygote', 'linux', 'program'))",
        "imports the judge": "*(refused(importlib.import_module, n) for n in ('inside', 'zygote', 'inside.zygote', 'inside.linux', 'cobalt', 'cobalt.judge')), *(n for n in sys.modules if n.partition('.')[0] in ('inside', 'cobalt'))",
    },
    "write host": {
        "writes into the interpreter": "refused(open, os.__file__, 'w'), refused(open, os.path.dirname(os.__file__) + '/planted.py', 'w')",
        "writes into system folders": "*(refused(open, d + '/planted', 'w') for d in ('/', '/usr/lib', '/lib', '/etc', '/dev', '/judge', '/judge/inside'))",
        "remounts read-write": "refused(call, 165, None, b'/', None, 32, None), refused(call, 165, None, b'/usr/lib', None, 4128, None)",
        "mounts a file system": "refused(call, 165, b'none', b'/tmp', b'tmpfs', 0, None), refused(call, 165, b'proc', b'/tmp', b'proc', 0, None), refused(call, 430, b'tmpfs', 0)",
        "unmounts its own folder": "refused(call, 166, b'/tmp', 2), refused(call, 166, b'/proc', 2)",
        "changes its root": "refused(os.chroot, '/tmp'), refused(call, 155, b'/tmp', b'/tmp')",
        "makes a device": "refused(os.mknod, '/tmp/disk', stat.S_IFBLK | 0o666, os.makedev(254, 0))",
        "sets kernel parameters": "*(refused(lambda: open('/proc/sys/' + n, 'w', 1).write('1\\n')) for n in ('kernel/core_pattern', 'kernel/hostname', 'vm/drop_caches', 'kernel/ns_last_pid')), refused(open, '/proc/sysrq-trigger', 'w')",
        "writes to cgroups": "refused(os.listdir, '/sys/fs/cgroup'), refused(os.listdir, '/sys')",
        "opens a file by handle": "refused(call, 304, -100, ctypes.create_string_buffer(64), 0), refused(call, 303, -100, b'/tmp', ctypes.create_string_buffer(b'\\x80' + bytes(200)), ctypes.create_string_buffer(8), 0)",
        "has the host's disks flushed": "refused(call, 162), refused(call, 306, os.open(os.__file__, 0))",
    },
    "network": {
        "connects to the host": "refused(socket.create_connection, ('127.0.0.1', {port}), 0.5)",
        "connects to the world": "refused(socket.create_connection, ('1.1.1.1', 53), 0.5)",
        "resolves a name": "refused(socket.getaddrinfo, 'example.com', 80)",
        "connects to an abstract unix socket": "refused(lambda: socket.socket(socket.AF_UNIX).connect('\\0{abstract}'))",
        "makes a socket of any kind": "*(refused(socket.socket, family, kind, 0) for family in range(1, 47) for kind in (1, 2, 3, 4, 5))",
        "makes a pair of any other kind": "*(refused(socket.socketpair, family, kind) for family in range(2, 47) for kind in (1, 2, 5))",
        "opens raw and packet sockets": "refused(socket.socket, 17, 3), refused(socket.socket, 2, 3, 1), refused(socket.socket, 16, 3), refused(socket.socket, 38, 5)",
    },
    "socket pair": {
        "gives an end of a pair a name": "refused(a.bind, '\\0name'), refused(b.bind, '/tmp/name'), refused(a.setsockopt, socket.SOL_SOCKET, socket.SO_PASSCRED, 1)",
        "has an end of a pair connect, listen and accept": "*(refused(*action) for s in (a, *socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)) for action in ((s.connect, '\\0{abstract}'), (s.listen,), (s.accept,)))",
        "passes a descriptor": "refused(socket.send_fds, a, [b'x'], [0]), refused(a.sendmsg, [b'x']), refused(call, 307, a.fileno(), ctypes.create_string_buffer(64), 1, 0)",
        "has signals sent for it": "*(refused(fcntl.fcntl, a, command, value) for command, value in ((fcntl.F_SETOWN, os.getpid()), (fcntl.F_SETOWN, -os.getpgid(0) or -1), (fcntl.F_SETSIG, 9), (15, struct.pack('ii', 2, 0))))",
        "has signals sent for it by a request": "refused(fcntl.ioctl, a, 0x8901, struct.pack('i', os.getpid())), refused(fcntl.ioctl, a, termios.FIOASYNC, struct.pack('i', 1))",
    },
    "shared objects": {
        "makes system V objects": "refused(call, 64, 0, 1, 0o600), refused(call, 68, 0, 0o600), refused(call, 29, 0, 4096, 0o600)",
        "makes a message queue": "refused(call, 240, b'left', os.O_CREAT | os.O_RDWR, 0o600, None)",
        "watches library folders": "refused(call, 253), refused(call, 294, 0), refused(call, 300, 0, 0)",
        "executes a link whose name is for the kernel's log": "refused(os.symlink, sys.executable, '/tmp/x\\n<0>said'), refused(os.symlink, '/', 'left')",
        "makes memory files": "refused(os.memfd_create, 'hoard'), refused(call, 447, 0)",
        "keeps a secret in a keyring": "refused(call, 248, b'user', b'note', b'secret', 6, -4), refused(call, 250, 0, -4, 1)",
        "leaves a message in the times of a device": "*(refused(os.utime, '/dev/' + name, when) for name in ('null', 'zero', 'full', 'random', 'urandom') for when in ((1, 2), None))",
        "watches descriptors, which is in nobody's memory": "refused(select.epoll), refused(call, 213, 1), refused(call, 291, 0)",
        "shares memory that belongs to no file": "refused(mmap.mmap, -1, 4096)",
        "enlarges its table of waiting threads": "refused(prctl, 78, 1, 1 << 12)",
    },
    "privileges": {
        "makes namespaces": "*(refused(call, 272, flag) for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000, 0x10020000))",
        "clones into namespaces": "*(refused(call, 56, flag | 17, 0, 0, 0, 0) for flag in (0x10000000, 0x20000, 0x20000000, 0x8000000, 0x40000000, 0x30000000)), refused(call, 435, ctypes.create_string_buffer(88), 88)",
        "enters namespaces": "*(refused(lambda: call(308, os.open(f'/proc/{who}/ns/{kind}', 0), 0)) for who in ('1', 'self') for kind in ('net', 'pid', 'mnt', 'user')), refused(lambda: call(308, os.pidfd_open(os.getpid()), 0x20000))",
        "traces a process": "refused(call, 101, 16, 1, 0, 0), refused(call, 101, 0, 0, 0, 0)",
        "reads another process's memory": "refused(call, 310, 1, None, 0, None, 0, 0), refused(call, 311, 1, None, 0, None, 0, 0)",
        "loads a bpf program": "refused(call, 321, 0, None, 0), refused(call, 298, None, 0, -1, -1, 0)",
        "uses io_uring and userfaultfd": "refused(call, 425, 8, ctypes.create_string_buffer(120)), refused(call, 323, 0)",
        "uses the numbers of another ABI": "refused(call, 0x40000000 | 39), refused(call, 0x40000000 | 41, 1, 1, 0)",
        "raises its limits": "*(refused(r.setrlimit, k, (r.RLIM_INFINITY, r.RLIM_INFINITY)) for k in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_NPROC, r.RLIMIT_FSIZE, r.RLIMIT_SIGPENDING, r.RLIMIT_MEMLOCK, r.RLIMIT_NOFILE))",
        "locks memory": "refused(lambda: libc.mlockall(1) and 1/0) if libc.mlockall(1) == 0 else None, refused(call, 149, ctypes.create_string_buffer(8192), 8192)",
        "saves itself from the memory killer": "*(refused(lambda: open(f'/proc/{who}/oom_score_adj', 'w', 1).write('-1000\\n')) for who in ('self', '1'))",
        "rewrites what the kernel knows of its memory": "*(refused(prctl, 35, field, 0x10000) for field in (1, 2, 6, 7, 8, 9, 13))",
        "sets the clock": "refused(time.clock_settime, time.CLOCK_REALTIME, 0.0)",
        "reboots": "refused(call, 169, 0xfee1dead, 672274793, 0x1234567, None)",
    },
    "groups": {
        "has no session and group of its own": "repr((os.getsid(0), os.getpgid(0))) if (os.getsid(0), os.getpgid(0)) != (os.getpid(),) * 2 else None",
        "moves into another session": "*(refused(os.setpgid, 0, n) for n in range(2, 300)), *(refused(os.tcsetpgrp, n, 1) for n in range(3))",
    },
    "processes": {
        "kills its parent": "repr(os.getppid()) if os.getppid() else None",
        "signals everyone": "refused(os.kill, -1, signal.SIGKILL)",
        "kills likely process numbers": "*(refused(os.kill, n, 9) for n in range(2, 3000))",
    },
}

PROGRAMS = {
    # Reading the host.
    "reads the environment": "environ = refused(lambda: open('/proc/self/environ', 'rb').read()) or ''\n"
    + "verdict(os.environ.get('JUDGE_TEST_SECRET'), 'seen' if 'JUDGE_TEST_SECRET' in environ else None)",
    "reads every process's environment and command line": "seen = [refused(lambda: open(f'/proc/{n}/{f}', 'rb').read()) or '' for n in [*names('/proc'), *range(1, 300)] for f in ('environ', 'cmdline')]\n"
    + "verdict('seen' if any(word in text for text in seen for word in ('JUDGE_TEST_SECRET', 'bwrap', 'start.py')) else None)",
    "reaches out through its descriptors' folder": "folder = os.open('/dev/fd/', os.O_RDONLY | os.O_DIRECTORY) if names('/dev/fd') else None\n"
    + "verdict(*(refused(lambda: os.open('../' * n + f, 0, dir_fd=folder)) for n in range(1, 6) for f in ('environ', 'maps', '1/maps', 'cmdline', {secret!r}[1:])) if folder else ())",
    "searches every descriptor": "open_ones = [n for n in range(3, 4096) if refused(os.fstat, n)]\nverdict(repr(open_ones) if open_ones else None)",
    "reads anything of /proc but its descriptors": """
def readable(folder, depth):
    for name in names(folder):
        path = folder + "/" + name
        if name == "fd" and depth:
            continue
        if os.path.isdir(path):
            if depth < 3 and not os.path.islink(path):
                yield from readable(path, depth + 1)
        elif refused(lambda: open(path, "rb").read(1)):
            yield path
known = ("cmdline", "version", "stat", "meminfo", "mounts", "net/unix", "net/dev", "locks", "loadavg", "modules", "sys/kernel/hostname")
own = ("mountinfo", "mounts", "maps", "mem", "environ", "cmdline", "status", "stat", "autogroup", "oom_score_adj", "cgroup", "exe", "root/usr", "task")
paths = ["/proc/" + name for name in known] + [f"/proc/{who}/{name}" for who in ("self", "thread-self", "1") for name in own]
verdict(*readable("/proc", 0), *(path for path in paths if os.path.exists(path)))
""",
    "reads the host's mounts in a child": """
ours, theirs = os.pipe()
if os.fork() == 0:
    who = ("self", "thread-self", str(os.getpid()), str(os.getppid()), "1")
    paths = [f"/proc/{n}/{f}" for n in who for f in ("mountinfo", "mounts", "mountstats")] + ["/proc/cmdline", "/etc/mtab"]
    os.write(theirs, next((text for text in (refused(lambda: open(p).read(99)) for p in paths) if text), "").encode())
    os._exit(0)
os.close(theirs)
os.wait()
verdict(os.read(ours, 999).decode())
""",
    "asks the kernel for its mounts": """
import struct
ids = (ctypes.c_uint64 * 100)()
verdict(refused(call, 458, struct.pack("IIQQ", 24, 0, 2**64 - 1, 0), ids, 100, 0), refused(call, 457, struct.pack("IIQQ", 24, 0, ids[0], 0x3A), ctypes.create_string_buffer(4096), 4096, 0))
""",
    "finds the judge's expected outputs in memory": "import gc\ngc.unfreeze()\nverdict(*(repr(o)[:80] for o in gc.get_objects() if isinstance(o, dict) and 'outputs' in o and 'inputs' in o))",
    # Reading the judge.
    "imports the judge from its folder": "sys.path += ['/judge', '/judge/inside']\nimport importlib\nimportlib.invalidate_caches()\nverdict(*(refused(importlib.import_module, n) for n in ('inside', 'zygote', 'inside.zygote', 'inside.linux')))",
    "has a fresh interpreter read the judge's files": "import subprocess\ncode = 'import os; print(open(\"/judge/inside/zygote.py\").read(40))'\nrun = subprocess.run([sys.executable, '-S', '-c', code], capture_output=True)\nverdict(run.stdout.decode())",
    "finds the judge's source among loaded code": "import gc, types\ngc.unfreeze()\nverdict(*(refused(open, o.co_filename) for o in gc.get_objects() if isinstance(o, types.CodeType) and 'inside' in o.co_filename), *(refused(open, path) for path in {getattr(m, '__file__', None) or '' for m in list(sys.modules.values())} if 'judge' in path))",
    # Writing to the host.
    "opens a library file again for writing": "handle = os.open(os.__file__, os.O_PATH)\nverdict(refused(os.open, f'/proc/self/fd/{handle}', os.O_RDWR), refused(os.open, f'/dev/fd/{handle}', os.O_WRONLY), refused(os.utime, os.__file__), refused(os.chmod, os.__file__, 0o777))",
    "executes a file beside its streams": "def run():\n    open('/io/x\\n<0>said', 'wb').write(open(sys.executable, 'rb').read(1 << 16))\n    os.chmod('/io/x\\n<0>said', 0o755)\n    os.execv('/io/x\\n<0>said', ['x'])\nverdict(refused(run))",
    # These succeed without an effect; a file of another kind would refuse them.
    "has library files flushed": "ours, _ = os.pipe()\nfile = os.open(os.__file__, 0)\nfor f in (file, ours):\n    for number in (74, 75, 277): call(number, f, 0, 0, 0)\ncall(26, 0, 4096, 4)\nprint('held')",
    # Talking to others.
    "sends to an abstract unix socket through a pair": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\nverdict(refused(a.sendto, b'x', '\\0{abstract}'))",
    "filters a socket by a program": PAIR
    + "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 1))\nverdict(*(refused(a.setsockopt, socket.SOL_SOCKET, option, struct.pack('HP', 1, ctypes.addressof(code))) for option in (26, 51)))",
    "enlarges a socket's buffers": PAIR
    + "size = a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)\nrefused(a.setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)\nverdict('enlarged' if a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > size else None)",
    # What is shared beyond the sandbox, or outlives its test, or holds memory that no process shows.
    "moves pages through pipes": PAIR
    + "ours, theirs = os.pipe()\nfile = os.open('main.py', 0)\nvector = struct.pack('PN', ctypes.addressof(ctypes.create_string_buffer(4096)), 4096)\n"
    + "verdict(refused(call, 278, theirs, vector, 1, 0), refused(call, 275, file, None, theirs, None, 1, 0), refused(call, 276, ours, theirs, 1, 2))",
    "locks library files": PAIR
    + "file = os.open(os.__file__, os.O_RDONLY)\nlock = struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)\n"
    + "verdict(refused(fcntl.flock, file, fcntl.LOCK_SH | fcntl.LOCK_NB), refused(fcntl.lockf, file, fcntl.LOCK_SH | fcntl.LOCK_NB), refused(fcntl.fcntl, file, fcntl.F_SETLK, lock), refused(fcntl.fcntl, file, 37, lock), refused(fcntl.fcntl, file, fcntl.F_GETLK, lock))",
    "takes leases and notices": PAIR
    + "file, folder = os.open(os.__file__, os.O_RDONLY), os.open('/usr/lib', os.O_RDONLY)\nown = os.open('own', os.O_RDWR | os.O_CREAT)\n"
    + "verdict(*(refused(fcntl.fcntl, f, fcntl.F_SETLEASE, kind) for f in (file, own) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK)), refused(fcntl.fcntl, folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS))",
    "enlarges a pipe": PAIR + "ours, theirs = os.pipe()\nverdict(refused(fcntl.fcntl, ours, 1031, 1 << 20))",
    "asks a library's file system for more than its contents": PAIR
    + "file = os.open(os.__file__, os.O_RDONLY)\n"
    + "verdict(*(refused(fcntl.ioctl, file, request, bytes(200)) for request in (0xC020660B, 0x80087601, 0x6608, 0x80111500, 0xC0506617)))",
    "makes a call that is newer than its judge": "def unknown(number):\n    try: call(number, 0, 0, 0, 0, 0, 0)\n    except OSError as error: return None if error.errno == errno.ENOSYS else repr(error)\n    return f'{number} got through'\n"
    + "verdict(*(unknown(number) for number in (337, 400, 423, 470, 471, 511, 512, 520, 547)))",
    "gives itself a name for the kernel's log": "shown = ctypes.create_string_buffer(16)\nrefused(prctl, 15, b'x\\n<0>said')\nprctl(16, shown)\nverdict(repr(shown.value) if b'\\n' in shown.value else None)",
    "executes a file of its own": "def run(name, data):\n    open(name, 'wb').write(data)\n    os.chmod(name, 0o755)\n    if os.fork() == 0:\n        try: os.execv(name, [name])\n        finally: os._exit(9)\n    if os.waitstatus_to_exitcode(os.wait()[1]) != 9: return name\n"
    + "verdict(run('x\\n<0>said', open(sys.executable, 'rb').read(1 << 20)), run('script', f'#!{sys.executable} -S\\n'.encode()))",
    "takes all the machine's places for asynchronous reads": "context = ctypes.c_ulong(0)\nverdict(refused(call, 206, 60000, ctypes.byref(context)))",
    "asks which pages of a library are in memory": "import mmap\nfile = os.open(os.__file__, os.O_RDONLY)\nblock = mmap.mmap(file, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE)\n"
    + "place = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(block)))\n"
    + "verdict(refused(call, 27, place, 4096, ctypes.create_string_buffer(9)), *(refused(call, 28, place, 4096, advice) for advice in (3, 9, 12, 20, 21, 25)), refused(os.preadv, file, [bytearray(1)], 0, os.RWF_NOWAIT), refused(os.posix_fadvise, file, 0, 0, os.POSIX_FADV_DONTNEED), refused(call, 187, file, 0, 4096))",
    "takes large pages out of the machine's store": "import mmap\ndef take(flags):\n    try: mmap.mmap(-1, 2 << 20, flags=flags)\n    except OSError as error:\n        if error.errno != errno.ENOMEM: raise\n"  # out of them, if it has any
    + "verdict(*(refused(take, kind | 0x40000 | mmap.MAP_ANONYMOUS) for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE)))",
    "finds devices that no program needs": "import stat\nknown = {'null', 'zero', 'full', 'random', 'urandom', 'shm', 'stdin', 'stdout', 'stderr'}\n"
    + "verdict(*set(os.listdir('/dev')) - known, *(refused(os.open, '/dev/' + n, 0) for n in ('tty', 'ptmx', 'console', 'fd', 'kmsg')))",
    # 288 bytes of the kernel's for each mapping, which no cgroup is charged for.
    "attaches policies to its memory": "import mmap\nblock = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nplace, nodes = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(block))), (ctypes.c_ulong * 1)(1)\n"
    + "verdict(refused(call, 237, place, 4096, 2, nodes, 64, 0), refused(call, 238, 2, nodes, 64))",
    "writes rules of its own": "import struct\ncode = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7FFF0000))\nrules = struct.pack('HP', 1, ctypes.addressof(code))\n"
    + "verdict(refused(call, 444, struct.pack('QQQ', 1, 0, 0), 24, 0), refused(prctl, 22, 2, rules), refused(call, 317, 1, 0, rules))",
    # Privileges.
    "becomes root": "own = os.getuid(), os.getgid()\nother = 0 if own[0] else 1000\nverdict(refused(os.setuid, other), refused(os.setgid, other), refused(os.setgroups, [other]))",
    "traces its child": "import signal\nchild = os.fork()\nif child == 0:\n    signal.pause()\nseen = refused(call, 101, 16, child, 0, 0), refused(call, 101, 0x4206, child, 0, 0), refused(call, 310, child, None, 0, None, 0, 0), refused(call, 438, os.pidfd_open(child), 0, 0)\nos.kill(child, 9)\nverdict(*seen)",
    "raises its priority": "refused(os.nice, -5), refused(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(10))\nverdict(repr((os.nice(0), os.sched_getscheduler(0))) if os.nice(0) < {niceness} or os.sched_getscheduler(0) != os.SCHED_OTHER else None)",
    "leaves a dump of its memory": "import resource as r\nbefore = r.getrlimit(r.RLIMIT_CORE)\nfor limits in ((0, 1), (0, 0), (1, 1), (4096, 4096)): refused(r.setrlimit, r.RLIMIT_CORE, limits)\n"
    + "refused(call, 160, 4, ctypes.create_string_buffer(16))\nverdict(repr(r.getrlimit(r.RLIMIT_CORE)) if r.getrlimit(r.RLIMIT_CORE) != before or before not in ((0, 0), (1, 1)) else None)",
    "becomes a fresh interpreter": r'''
code = """
import ctypes, os, socket, sys
libc, seen = ctypes.CDLL(None), []
def tried(name, action):
    try: action()
    except OSError: return
    seen.append(name)
def check(result):
    if result: raise OSError
tried("socket", socket.socket)
tried("repository", lambda: os.listdir(sys.argv[1]))
tried("mount", lambda: check(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)))
tried("umount", lambda: check(libc.umount2(b"/tmp", 2)))
tried("user", lambda: os.setresuid(4, 4, 4))
tried("capability", lambda: check(libc.prctl(47, 2, 21, 0, 0)))
print(seen or "held")
"""
os.execve(sys.executable, [sys.executable, "-S", "-c", code, {repository!r}], os.environ | {"LD_PRELOAD": "libm.so.6"})
''',
    "runs files that raise privileges": "import sysconfig\nfolders = ('/', '/usr/lib', '/tmp', '/dev', sysconfig.get_path('stdlib'), sys.executable)\nverdict(*(f for f in folders if not os.statvfs(f).f_flag & os.ST_NOSUID))",
    # What reaches others in the same session, group or user; the probe after each finds the sandbox's processes unharmed.
    "sends its group every signal": """
import os, signal
for number in (signal.SIGINT, *range(34, 65)): signal.signal(number, signal.SIG_IGN)
for number in range(1, 65):
    child = os.fork()
    if child == 0:
        os.kill(0, number)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    try: os.kill(child, 9)
    except OSError: pass
    try: os.waitpid(child, 0)
    except OSError: pass
print("held")
""",
    "signals groups by number": "import os\nfor group in range(2, 3000):\n    try: os.killpg(group, 9)\n    except OSError: continue\n    print('killed', group)\nprint('held')",
    "leaves the processor to others": "import os\nos.nice(19)\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint('held' if (os.nice(0), os.sched_getscheduler(0), len(os.sched_getaffinity(0))) == (START, os.SCHED_OTHER, os.cpu_count()) else 'lowered')".replace(
        "START", "{niceness}"
    ),
    "lowers the priority of its group": "import os\ntry: os.setpriority(os.PRIO_PGRP, 0, 19)\nexcept OSError: pass\nprint('held')",
    "lowers the priority of its user": "import os\nfor user in (0, os.getuid()):\n    try: os.setpriority(os.PRIO_USER, user, 19)\n    except OSError: pass\nprint('held')",
    "lowers the disk priority of its group and user": "for kind, who in ((2, 0), (3, 0), (3, os.getuid())): refused(call, 251, kind, who, 3 << 13)\nprint('held')",
    "lowers the priority of its session": "def slow(path):\n    with open(path, 'w') as file: file.write('19')\nverdict(*(refused(slow, f'/proc/{who}/autogroup') for who in ('self', '1', 'thread-self')))",
    "gives its group a class of the scheduler": "for pid in (0, *range(2, 50)): refused(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))\nrefused(prctl, 62, 1, 0, 2, 0)\nprint('held')",
    # Ends of processes.
    "kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\nprint('held')",
    "kills itself by a signal that looks like the kernel's": """
import struct
info = struct.pack("iiiii", 9, 0, 0x80, 0, 0) + bytes(108)
own = os.pidfd_open(os.getpid())
verdict(*(refused(call, *arguments) for arguments in (
    (129, os.getpid(), 9, info), (297, os.getpid(), os.getpid(), 9, info), (424, own, 9, info, 0))))
""",
    "kills itself by a timer": """
import struct, time
timer = ctypes.c_int()
refused(call, 222, 1, struct.pack("Pii48x", 0, 9, 0), ctypes.byref(timer))
refused(call, 223, timer, 0, struct.pack("qqqq", 0, 0, 0, 1), None)
time.sleep(0.05)
print("held")
""",
    "kills itself by a socket's signal": PAIR
    + """
import time
for owner in (os.getpid(), -1, -os.getpid()):
    refused(fcntl.fcntl, a, fcntl.F_SETOWN, owner)
    refused(fcntl.fcntl, a, fcntl.F_SETSIG, 9)
    refused(fcntl.fcntl, a, fcntl.F_SETFL, os.O_ASYNC)
    b.send(b"x")
time.sleep(0.05)
print("held")
""",
    "kills itself by its child's end": "child = libc.syscall(56, 9, 0, 0, 0, 0)\nif child == 0: libc._exit(0)\nimport time\ntime.sleep(0.1)\nprint('held')",
    "kills itself when its parent ends": "refused(prctl, 1, 9)\nprint('held')",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('held')",
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
    "leaves a process in its memory": "stack = ctypes.create_string_buffer(1 << 16)\ntop = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 16) - 64 & ~15)\nlibc.clone(libc.pause, top, 0x100 | 17, None)\nprint('held')",
    # More of something than there is.
    "forks without end": "import os\ntry:\n    for _ in range(1000):\n        if os.fork() == 0:\n            import time; time.sleep(1000)\nexcept OSError: print('held')",
    "starts threads without end": "import threading\ntry:\n    for _ in range(1000): threading.Thread(target=threading.Event().wait, daemon=True).start()\nexcept RuntimeError: print('held')",
    "opens files without end": "files = []\ntry:\n    for _ in range(100000): files.append(open('/dev/null'))\nexcept OSError as error: print('held' if error.errno == 24 and len(files) > 100 else error)",
    "writes a huge file": "try:\n    f = open('big', 'wb', 0)\n    while True: f.write(bytes(1 << 20))\nexcept OSError: print('held')",
    "writes many files": "try:\n    for n in range(10**6): open(f'f{n}', 'wb').write(b'x' * 4096)\nexcept OSError: print('held')",
    "makes shared memory": "import multiprocessing.shared_memory as m\ntry:\n    m.SharedMemory(create=True, size=1 << 30)\n    print('made')\nexcept OSError: print('held')",
    "sets timers without end": "timer, event = ctypes.c_int(), __import__('struct').pack('Pii48x', 0, 10, 0)\ntry:\n    for _ in range(2000): call(222, 1, event, ctypes.byref(timer))\n    print('2000 timers')\nexcept OSError: print('held')",
    "fills attributes of files": "import os\ntry:\n    for n in range(1000):\n        open(f'f{n}', 'w').close()\n        os.setxattr(f'f{n}', 'user.x', bytes(60000))\n    print('60 MB')\nexcept OSError: print('held')",
    # Something for those that come after.
    "plants a module": "open('bisect.py', 'w').write('raise SystemExit(9)')\nopen('/dev/shm/heapq.py', 'w').write('raise SystemExit(9)')\nprint('held')",
    "rewrites itself": "open(__file__, 'w').write('raise SystemExit(9)')\nprint('held')",
    "makes a named semaphore": "import _multiprocessing as m\nm.SemLock(1, 1, 1, '/left', False)\nprint('held')",
    "leaves a file wherever it can": "folders = [f for top in ('/tmp', '/dev', '/io', '/proc', '/etc', '/judge', '/packages') for f, _, _ in os.walk(top)] + ['/', '/usr', '/usr/lib', '/python']\nfor f in folders:\n    refused(os.chmod, f, 0o777)\n    refused(lambda: open(f + '/left', 'w').close())\nprint('held')",
    "leaves a unix socket": "import socket\ndef leave():\n    s = socket.socket(socket.AF_UNIX)\n    s.bind('\\0left')\n    s.listen()\nrefused(leave)\nprint('held')",
    "fills the temporary folder": "open('full', 'wb').write(bytes(7 << 20))\nprint('held')",
    "fills its standard input": "refused(lambda: open('/dev/stdin', 'r+b', 0).write(bytes(7 << 20)))\nrefused(os.write, 0, bytes(7 << 20))\nrefused(os.truncate, 0, 0)\nprint('held')",
    "poisons warm modules": "import bisect, math, random\nbisect.bisect = math.sqrt = random.random = None\nprint('held')",
    "sets the hook of imports": "import sys\nsys.meta_path.clear()\nsys.path.clear()\nsys.modules['math'] = None\nprint('held')",
}
HELD = {
    f"attempts ({kind})": f"{PAIR if kind == 'socket pair' else SYSCALL}{NAMED}verdict({', '.join(f'named({name!r}, {tried})' for name, tried in attempts.items())})"
    for kind, attempts in ATTEMPTS.items()
} | {name: code if code.startswith(SYSCALL) else SYSCALL + code for name, code in PROGRAMS.items()}
ENDS: dict[str, Attack] = {
    "loops": Attack("while True: pass", (SLOW,)),
    "loops in many processes": Attack("import os\nfor _ in range(3): os.fork()\nwhile True: pass", (SLOW,)),
    "loops in children while it waits": Attack("import os\nif os.fork() == 0:\n    while True: pass\nos.wait()\nprint('held')", (SLOW,)),
    "loops in children that nobody waits for": Attack(
        "import os, time\nfor _ in range(14):\n    child = os.fork()\n    if child == 0:\n        while time.process_time() < 0.09: pass\n        os._exit(0)\n"
        "    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\nprint('held')",
        (SLOW,),
    ),
    "loops in orphans that a child takes in": Attack(
        SYSCALL
        + """
import time
if os.fork() == 0:
    refused(prctl, 36, 1)
    for _ in range(12):
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                while time.process_time() < 0.12: pass
            os._exit(0)
        os.waitpid(middle, 0)
        time.sleep(0.12)
    time.sleep(60)
while True:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    time.sleep(0.01)
""",
        (SLOW,),
    ),
    "loops after its first thread has left": Attack(
        SYSCALL + "import threading\ndef loop():\n    while True: pass\nthreading.Thread(target=loop).start()\nlibc.syscall(60, 0)", (SLOW,),
    ),
    "loops under a name that looks like a state": Attack(SYSCALL + "prctl(15, b'x) S 1 1 0 0 0')\nwhile True: pass", (SLOW,)),
    "has ended children taken away": Attack("import signal\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: print('held')"),
    "loops beyond signals": Attack("import signal\nfor n in (signal.SIGTERM, signal.SIGXCPU, signal.SIGALRM): signal.signal(n, signal.SIG_IGN)\nwhile True: pass", (SLOW,)),
    "computes at exit": Attack("import atexit\natexit.register(lambda: sum(range(10**12)))\nprint('held')", (SLOW,)),
    "sleeps": Attack("import time\ntime.sleep(1000)", (WAITING,)),
    "sleeps under a name that looks like a state": Attack(SYSCALL + "import time\nprctl(15, b') R 9 9 9 9 9 9')\ntime.sleep(1000)", (WAITING,)),
    "sleeps where its judge may not look": Attack(SYSCALL + "import time\nprctl(4, 0)\ntime.sleep(1000)", (WAITING,)),
    "sleeps while its child sleeps in its place": Attack(SYSCALL + "libc.vfork.restype = ctypes.c_int\nlibc.syscall(56, 0x4000 | 17, 0, 0, 0, 0)\nimport time\ntime.sleep(1000)", (WAITING,)),
    "waits for a child that stopped": Attack("import os, signal\nchild = os.fork()\nif child == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)\nos.waitpid(child, 0)", (WAITING,)),
    "never ends a thread": Attack("import threading\nthreading.Thread(target=threading.Event().wait).start()\nprint('held')", (WAITING,)),
    "fills its memory": Attack("x = []\nwhile True: x.append(bytearray(1 << 20))", (FAT,)),
    "fills memory in many processes": Attack(
        "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(100 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\ntime.sleep(1000)",
        (FAT,),
    ),
    "floods its output": Attack("while True: print('x' * 65536)", (LOUD,)),
    "floods its output past errors": Attack("import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except OSError: pass", (LOUD,)),
    "floods standard error": Attack("import sys\nwhile True: sys.stderr.write('x' * 65536)", (CRASHED,)),
    # By the judge or, at the limit that it set itself, by the kernel.
    "lowers its own limit on CPU time": Attack("import resource as r\ntry: r.setrlimit(r.RLIMIT_CPU, (1, 1))\nexcept (OSError, ValueError): pass\nwhile True: pass", (SLOW, CRASHED)),
    "ends without output": Attack("import os\nos._exit(0)", (WRONG,)),
    "closes its descriptors": Attack("import os\nos.closerange(0, 256)", (WRONG,)),
    "crashes": Attack("import ctypes\nctypes.string_at(0)", (CRASHED,)),
    "calls the kernel as a 32-bit program does": Attack(
        SYSCALL + "import mmap\ncode = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)\ncode.write(bytes.fromhex('b814000000cd80c3'))\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()\nprint('held')",
        (CRASHED,),
    ),
    "overflows the C stack": Attack("import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(self, name): return getattr(self, name + 'x')\nA().y", (CRASHED,)),
    "prints a forged verdict": Attack("print('{\"passing\": [true], \"kind\": \"passed\"}')", (WRONG,)),
    "exits with a message of success": Attack("import sys\nprint('held')\nsys.exit(3)", (CRASHED,)),
    "raises at exit after the right answer": Attack("import atexit\nprint('held')\natexit.register(lambda: 1/0)"),
    "tampers with the exit": Attack("import os, sys\nsys.excepthook = lambda *a: os._exit(0)\n1/0", (WRONG,)),
    "tampers with builtins": Attack("import builtins, os\nbuiltins.compile = builtins.exec = os._exit = os.write = None\nprint('held')"),
    "looks at the frames above": Attack(
        "import sys\nf = sys._getframe()\nseen = []\nwhile f: seen += list(f.f_locals) + list(f.f_globals); f = f.f_back\nprint('seen' if 'outputs' in seen or 'expected' in seen else 'held')",
    ),
}  # fmt: skip
# What every program must find, whatever ran before it.
PROBE = """
import bisect, heapq, math, os, random
assert os.listdir("/tmp") == ["main.py"], os.listdir("/tmp")
assert not [f for top in ("/dev", "/io", "/etc") for f, _, names in os.walk(top) if "left" in names]
assert os.getpid() == 1
try:
    os.kill(-1, 0)
    raise AssertionError("another process")
except ProcessLookupError:
    pass
assert os.getpriority(os.PRIO_PROCESS, 0) == {niceness}, os.getpriority(os.PRIO_PROCESS, 0)
assert os.sched_getscheduler(0) == os.SCHED_OTHER
assert bisect.bisect([1, 2], 1) == 1 and math.sqrt(4) == 2 and random.random() < 1
open("full", "wb").write(bytes(7 << 20))
print(input()[::-1])
"""
# After an attack on disk priorities: its own is that of its class.
DISK_PRIORITY = SYSCALL + "print('held' if call(252, 1, 0) >> 13 != 3 else 'idle')"

# Attacks on the memory limit: to hold more than 128 MiB and still be asked for an answer. Either the kernel refuses what
# they try, and then they have not held that much, or they end at the limit.
HOARD = (
    SYSCALL
    + """
import mmap, socket, struct, threading, time
MIB = 1 << 20
kept = []
def write_pages(block):
    for start in range(0, len(block), 4096): block[start] = 1
def private(size):
    block = mmap.mmap(-1, size * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    write_pages(block)
    kept.append(block)
    return block
def stuff(pair):
    # Fills the buffers of both ends; returns the bytes that they took.
    size = 0
    for end in pair:
        refused(end.setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        end.setblocking(False)
        try:
            while True: size += end.send(bytes(32768))
        except BlockingIOError: pass
    return size
def report(total, children=()):
    time.sleep(0.3)
    alive = all(os.waitpid(child, os.WNOHANG) == (0, 0) for child in children)
    print("held" if total <= 128 or not alive else f"hoarded {total} MiB", flush=True)
    os._exit(0)
def hoard(count, action, already=0):
    # Runs `action` in children; it calls its argument with a number for as many MiB that it holds more, which ends it
    # when all of them together have enough (which 64 for each of three is not).
    ours, theirs = os.pipe()
    held = 0
    def tell(size):
        nonlocal held
        held += size
        os.write(theirs, bytes([size]))
        if held * count > 220: raise OSError("enough")
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(ours)
            try: action(tell)
            except (OSError, MemoryError, ValueError) as error: kept.append(error)
            os.close(theirs)
            while True: time.sleep(60)
        children.append(child)
    os.close(theirs)
    total = already
    while data := os.read(ours, 4096): total += sum(data)
    report(total, children)
"""
)
# A program that holds more than it may prints so, which is a wrong answer; one that was kept from it may end at any limit.
MAY_BE_REFUSED = (PASSED, FAT, SLOW, CRASHED)
MEMORY: dict[str, Attack] = {
    "holds page tables of pages that it only reads": Attack(
        HOARD
        + "libc.mmap.restype = ctypes.c_void_p\nlibc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\n"
        + "private(10)\nchild = os.fork()\ncount = 0\nwhile count < 15000:\n    page = libc.mmap((1 << 40) - 4096 + (count << 30), 8192, 1, 0x100022, -1, 0)\n    if page in (None, 2**64 - 1): break\n    ctypes.c_byte.from_address(page).value; ctypes.c_byte.from_address(page + 4096).value\n    count += 1\nif child == 0: time.sleep(60)\ntime.sleep(0.3)\nreport(2 * (10 + 12 * count // 1024), [child])",
        (FAT, PASSED),
    ),
    "keeps the pages of /dev/zero that it has unmapped": Attack(
        HOARD
        + "libc.mmap.restype = ctypes.c_void_p\nlibc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\nlibc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\n"
        + "zero, total = os.open('/dev/zero', os.O_RDWR), 0\nwhile total < 400:\n    place = libc.mmap(None, 16 * MIB, 3, 1, zero, 0)\n    if place in (None, 2**64 - 1): break\n    ctypes.memset(place, 1, 16 * MIB)\n    libc.munmap(place + 4096, 16 * MIB - 4096)\n    total += 16\nreport(total)",
        MAY_BE_REFUSED,
    ),
    "drops shared memory of /dev/zero from sight": Attack(
        HOARD + "def action(tell):\n    block = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 64 * MIB, mmap.MAP_SHARED)\n    kept.append(block)\n    for start in range(0, 64, 2):\n        write_pages(memoryview(block)[start * MIB : (start + 2) * MIB])\n        block.madvise(mmap.MADV_DONTNEED)\n        tell(2)\nhoard(4, action)",
        MAY_BE_REFUSED,
    ),
    "eats in a thread whose process has lost its first one": Attack(
        HOARD + "def action(tell):\n    block = mmap.mmap(-1, 64 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # before a thread's own heap takes the room\n    def eat():\n        time.sleep(0.05)\n        write_pages(block)\n        tell(64)\n        os.closerange(3, 200)\n        time.sleep(60)\n    threading.Thread(target=eat).start()\n    libc.syscall(60, 0)\nhoard(3, action)",
        (FAT,),
    ),
    "fills sockets": Attack(
        HOARD
        + """
def fill(tell):
    size = MIB
    for _ in range(58):
        kept.append(socket.socketpair())
        size += stuff(kept[-1])
        while size > 2 * MIB:
            tell(1)
            size -= MIB
hoard(14, fill)
""",
        MAY_BE_REFUSED,
    ),
    "fills sockets of threads with descriptors of their own": Attack(
        HOARD
        + """
total = 0
for _ in range(14):
    kept = [socket.socketpair() for _ in range(55)]
    total += sum(map(stuff, kept))
    stack = mmap.mmap(-1, 65536, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + 65536 - 64
    if libc.clone(libc.pause, ctypes.c_void_p(top), 0x100 | 0x800 | 0x10000, None) < 0: break  # no CLONE_FILES
    if total > 220 * MIB: break
    for end in (end for pair in kept for end in pair): end.close()
report(total // MIB)
""",
        MAY_BE_REFUSED,
    ),
    # A byte at the end of a page and one at the next one's beginning hold both, and count as two bytes.
    "pins pages by single bytes in sockets": Attack(
        HOARD
        + """
def pin(tell):
    file = os.open(f"pages-{os.getpid()}", os.O_RDWR | os.O_CREAT)
    pages = 0
    for _ in range(58):
        pair = socket.socketpair()
        kept.append(pair)
        for end in pair:
            end.setblocking(False)
            try:
                while True:
                    os.pwrite(file, bytes(256 * 4096), 0)
                    for page in range(0, 256, 2):
                        os.sendfile(end.fileno(), file, page * 4096 + 4095, 2)
                        pages += 2
                    os.ftruncate(file, 0)
            except BlockingIOError: pass
            os.ftruncate(file, 0)
            while pages >= 256:
                tell(1)
                pages -= 256
hoard(2, pin)
""",
        MAY_BE_REFUSED,
    ),
    "fills named pipes": Attack(
        HOARD
        + """
private(75)
def fill(tell):
    size = 0
    for number in range(120):
        os.mkfifo(f"{os.getpid()}-{number}")
        pipe = os.open(f"{os.getpid()}-{number}", os.O_RDWR | os.O_NONBLOCK)
        try:
            while True: size += os.write(pipe, bytes(4096))
        except BlockingIOError: pass
        while size >= MIB:
            tell(1)
            size -= MIB
hoard(9, fill, 75)
""",
        MAY_BE_REFUSED,
    ),
    "pins large pages in pipes": Attack(
        HOARD
        + """
def pin(tell):
    for _ in range(4):
        ours, theirs = os.pipe()
        kept.append((ours, theirs))
        for _ in range(15):
            block = mmap.mmap(-1, 4 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            block.madvise(mmap.MADV_HUGEPAGE)
            start = ctypes.addressof(ctypes.c_char.from_buffer(block)) + 2 * MIB - 1 & -2 * MIB
            ctypes.memset(start, 1, 1)
            call(278, theirs, struct.pack("PN", start, 1), 1, 0)
            libc.munmap(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(block))), 4 * MIB)
            kept.append(block)
            tell(2)
hoard(3, pin)
""",
        MAY_BE_REFUSED,
    ),
    "stores in its files and streams": Attack(
        HOARD
        + """
def fill(file):
    total = 0
    try:
        while total < 60 and os.pwrite(file, bytes(MIB), total * MIB) == MIB: total += 1
    except OSError: pass
    return total
total = fill(os.open("full", os.O_RDWR | os.O_CREAT)) + fill(2)
for path in ("/dev/stdin", "/proc/self/fd/0", "/io/stdin"):
    refused(os.chmod, path, 0o666)
    try: file = os.open(path, os.O_RDWR)
    except OSError: continue
    total += fill(file)
    break
else:
    total += fill(0)
# Beyond the end of the output, where its size does not grow.
try: total += 40 * (call(285, 1, 1, 0, 40 * MIB) == 0)
except OSError: pass
report(total)
""",
        MAY_BE_REFUSED,
    ),
    # Each process of the chain keeps a link to each of its ancestors for each mapping.
    "divides its memory in a chain of processes": Attack(
        HOARD
        + """
pages, depth, first = 4500, 1, os.getpid()
block = mmap.mmap(-1, pages * 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
place = ctypes.addressof(ctypes.c_char.from_buffer(block))
for start in range(0, pages * 8192, 8192):
    libc.munmap(ctypes.c_void_p(place + start), 4096)
    ctypes.memset(place + start + 4096, 1, 1)
ours, theirs = os.pipe()
while depth < 31:
    if libc.fork(): break
    depth += 1
    libc.write(theirs, b"x", 1)
if os.getpid() != first:
    libc.close(theirs)
    while True: libc.pause()
os.close(theirs)
depth = 1
while data := os.read(ours, 99): depth += len(data)
report(pages * (depth * 250 + depth * (depth + 1) // 2 * 64) // MIB)
""",
        (PASSED, FAT, SLOW),
    ),
    "eats where its judge may not look": Attack(HOARD + "def action(tell):\n    prctl(4, 0)\n    private(64)\n    tell(64)\nhoard(3, action)", (FAT,)),
    "eats under a name that looks like a state": Attack(HOARD + "def action(tell):\n    prctl(15, b') S 0 0 0 0 0')\n    private(64)\n    tell(64)\nhoard(3, action)", (FAT,)),
    # The kernel may take such pages back, and then they are not held: each process counts those that are still its own.
    "eats and declares its memory free": Attack(
        HOARD
        + """
counts = os.open("counts", os.O_RDWR | os.O_CREAT)
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        block = private(64)
        block.madvise(mmap.MADV_FREE)
        libc.madvise(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(block))), 64 * MIB, 21)
        while True:
            os.pwrite(counts, bytes([block[::4096].count(1) * 4096 // MIB]), number)
            time.sleep(0.02)
    children.append(child)
time.sleep(0.6)
report(sum(os.pread(counts, 3, 0)), children)
""",
        (FAT, PASSED),
    ),
    "eats in stopped processes": Attack(HOARD + "def action(tell):\n    private(64)\n    tell(64)\n    os.closerange(3, 200)\n    os.kill(os.getpid(), 19)\nhoard(3, action)", (FAT,)),
    "eats in fresh interpreters": Attack(
        HOARD
        + """
import subprocess
eat = "x = bytearray(64 << 20)\\nfor i in range(0, len(x), 4096): x[i] = 1\\nprint(64, flush=True)\\nimport time; time.sleep(60)"
eaters = [subprocess.Popen([sys.executable, "-S", "-c", eat], stdout=subprocess.PIPE) for _ in range(4)]
report(sum(int(eater.stdout.readline() or 0) for eater in eaters), [eater.pid for eater in eaters])
""",
        (FAT,),
    ),
    "leaves its memory to a process that shares it": Attack(
        HOARD
        + """
def action(tell):
    private(64)
    stack = ctypes.create_string_buffer(1 << 16)
    libc.clone(libc.pause, ctypes.c_void_p(ctypes.addressof(stack) + (1 << 16) - 64 & ~15), 0x100 | 17, None)
    tell(64)
    os.closerange(3, 200)
    os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(60)"])
hoard(3, action)
""",
        (FAT,),
    ),
    # No process lives for longer than a measurement takes. The chains end when they have held all of it for 150 links
    # each, which on a machine of any speed is longer than many intervals between measurements.
    "eats in chains of short-lived processes": Attack(
        HOARD
        + """
def next_link():
    while True:
        try: return os.fork()
        except OSError: time.sleep(0.001)
ours, theirs = os.pipe()
def chain():
    size = 0
    while True:
        if size < 50:
            private(1)
            size += 1
        os.write(theirs, b"f" if size == 50 else b"g")
        if next_link(): os._exit(0)
        time.sleep(0.004)
for _ in range(4):
    if os.fork() == 0: chain()
links = 0
while links < 4 * 150:
    links += os.read(ours, 4096).count(b"f")
    while os.waitpid(-1, os.WNOHANG)[0]: pass
print("hoarded")
""",
        (FAT,),
    ),
}  # fmt: skip

# Sleeps in processes whose memory takes long to look at, each in very many pieces.
DEAR_TO_LOOK_AT = (
    SYSCALL
    + """
import mmap, time
block = mmap.mmap(-1, 240 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
place = ctypes.addressof(ctypes.c_char.from_buffer(block))
for start in range(0, len(block), 8192): libc.mprotect(ctypes.c_void_p(place + start), 4096, 1)
for _ in range(20):
    if os.fork() == 0: break
time.sleep(1000)
"""
)


def large_when_compiled() -> str:
    """Half a kilobyte of which the compiler makes 200 MiB, since Python copies what stands in `finally`."""
    depth = 16
    lines = ["f = abs"]
    for level in range(depth):
        lines += [" " * level + "try: pass", " " * level + "finally:"]
    return "\n".join([*lines, " " * depth + "f(1); f(1)"])


# Each of its processes holds little, and the compiler most of what there is: the kernel must end the program all the same.
SMALL_BESIDE_ITS_COMPILER = (
    large_when_compiled()
    + """
import os, sys
os.execv(sys.executable, [sys.executable, "-S", "-c", '''
import os, time
for _ in range(28):
    if os.fork() == 0: break
kept = b"x" * (5 << 20)
time.sleep(30)
'''])
"""
)

# Two programs at the same time in two sandboxes; the second is the honest one.
PAIRS: dict[str, tuple[str, str]] = {
    "takes all the pipes that a user may have": (
        SYSCALL
        + """
import fcntl, time
for _ in range(28):
    if os.fork() == 0:
        try:
            while True:
                ours, theirs = os.pipe()
                refused(fcntl.fcntl, ours, 1031, 1 << 20)
        except OSError: pass
        time.sleep(60)
time.sleep(1.0)
print("held")
""",
        "import os, time\ntime.sleep(0.6)\nours, theirs = os.pipe()\nos.write(theirs, bytes(60000))\nprint('held' if len(os.read(ours, 60000)) == 60000 else 'short')",
    ),
    "fills small pipes of others": (
        SYSCALL
        + "import time\nours, theirs = os.pipe()\nfor i in range(29):\n    if os.fork() == 0:\n        os.close(theirs); os.read(ours, 1)\n        try:\n            while True: os.pipe()\n        except OSError: pass\n        time.sleep(0.25); os._exit(0)\nos.close(ours); os.close(theirs); time.sleep(0.3)\nprint('held')",
        "import os, time\nfor _ in range(12):\n    time.sleep(0.05)\n    ours, theirs = os.pipe()\n    os.write(theirs, bytes(30000))\n    if len(os.read(ours, 30000)) != 30000: print('short')\n    os.close(ours); os.close(theirs)\nprint('held')",
    ),
    "tells another by a lock on a library file": (
        PAIR
        + "import time\nfile = os.open(os.__file__, 0)\nrefused(fcntl.flock, file, fcntl.LOCK_EX)\nrefused(fcntl.fcntl, file, 37, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0))\ntime.sleep(1)\nprint('held')",
        PAIR
        + "import time\nfile = os.open(os.__file__, 0)\nseen = None\nfor _ in range(6):\n    time.sleep(0.1)\n    try:\n        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        fcntl.flock(file, fcntl.LOCK_UN)\n    except BlockingIOError: seen = 'seen'\n    except OSError: pass\nverdict(seen)",
    ),
    "uses up the queued signals of a user": (
        SYSCALL
        + "import struct, time\ntimer, event = ctypes.c_int(), struct.pack('Pii48x', 0, 10, 0)\ntry:\n    for _ in range(120000): call(222, 1, event, ctypes.byref(timer))\nexcept OSError: pass\ntime.sleep(1.5)\nprint('held')",
        SYSCALL
        + "import struct, time\ntime.sleep(1.4)\ntimer = ctypes.c_int()\ncall(222, 1, struct.pack('Pii48x', 0, 10, 0), ctypes.byref(timer))\nprint('held')",
    ),
}

# Two tests of one program, one after the other in a sandbox: the first leaves something, the second looks for it.
TRACES = {
    "a socket that is its own messages' cargo": REFUSED
    + """
import socket, time
def leave():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\\0left-behind")
    listener.listen()
    a, b = socket.socketpair()
    socket.send_fds(a, [b"x"], [listener.fileno(), a.fileno(), b.fileno()])
def look():
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.connect("\\0left-behind")
    return "found"
if input() == "leave":
    refused(leave)
    print("held")
else:
    verdict(refused(look))
""",
    "a file in memory": REFUSED
    + "import mmap\nif input() == 'leave':\n    open('/dev/shm/left', 'w').write('x')\n    refused(lambda: open('/dev/shm/../../io/left', 'w').write('x'))\n    print('held')\nelse: verdict(refused(open, '/dev/shm/left'), refused(open, '/io/left'))",
    "a note in its own file's attributes": REFUSED
    + "if input() == 'leave':\n    for f in ('/', '/tmp', '/dev', '/io', '/tmp/main.py'): refused(os.setxattr, f, 'user.left', b'x')\n    print('held')\nelse: verdict(*(refused(os.getxattr, f, 'user.left') for f in ('/', '/tmp', '/dev', '/io', '/tmp/main.py')))",
}

# Functions `f` that are wrong and try to pass the assertion that f(3) == 7919, in which they never take part.
FORGED = "import os\ndef f(x):\n    os.write(1, {text!r})\n    os._exit(0)"
EQUAL = "class A({base}):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    __hash__ = {base}.__hash__\n"


def forged(text: bytes) -> Attack:
    """Writes the text where the driver leaves the values of the calls, and ends with success."""
    return Attack(FORGED.format(text=text), (WRONG,))


def equal_to_all(base: str, value: str, *expected: VerdictKind) -> Attack:
    """Returns an object of a class that extends `base` and says that it is equal to everything."""
    return Attack(EQUAL.format(base=base) + f"def f(x): return {value}", expected or (WRONG,))


ASSERTED: dict[str, Attack] = {
    "ends with success before it is called": Attack("exit(0)", (CRASHED,)),
    "ends with success when it is called": Attack("import sys\ndef f(x): sys.exit(0)", (CRASHED,)),
    "ends its process with success": Attack("import os\ndef f(x): os._exit(0)", (CRASHED,)),
    "ends its process with success at the end": Attack("import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 1", (WRONG,)),
    "ends with success whatever happens": Attack("import os, sys\nsys.excepthook = lambda *_: os._exit(0)\ndef f(x): raise AssertionError", (CRASHED,)),
    "replaces AssertionError": Attack("import builtins\nclass AssertionError(Exception): pass\nbuiltins.AssertionError = AssertionError\ndef f(x): return 1", (WRONG,)),
    "replaces every built-in name": Attack("import builtins\nfor n in ('compile', 'eval', 'exec', 'isinstance', 'getattr', 'open', 'max', 'type', 'print', 'repr'): setattr(builtins, n, lambda *a, **k: True)\ndef f(x): return 1", (WRONG, CRASHED)),
    "replaces the compilation of assertions": Attack("import builtins\nreal = builtins.compile\nbuiltins.compile = lambda source, *a, **k: real(source.replace('assert', 'pass #') if isinstance(source, str) else source, *a, **k)\ndef f(x): return 1", (WRONG,)),
    "optimises assertions away": Attack("import sys\nsys.flags = type('F', (), {'optimize': 2, 'verbose': 0})\ndef f(x): return 1", (WRONG,)),
    "traces every line": Attack("import sys\ndef trace(frame, event, argument):\n    for name in list(frame.f_locals):\n        if name in ('kind', 'failed', 'calling'): frame.f_locals[name] = False\n    return trace\nsys.settrace(trace)\ndef f(x): return 1", (WRONG,)),
    "replaces the driver": Attack("def f(x):\n    g = globals()\n    g['_judge_typed'] = g['_judge_fail'] = lambda *a: True\n    g['_judge_answer'] = lambda text: print('accepted') or exit(0)\n    return 1", (CRASHED,)),
    "replaces the writer of JSON": Attack("import json\njson.dumps = lambda *a, **k: 'accepted'\ndef f(x): return 1", (WRONG,)),
    "replaces the ways out": Attack("import os, posix\nposix._exit = os._exit = posix.dup2 = posix.ftruncate = lambda *_: None\nprint('accepted', flush=True)\ndef f(x): return 1", (WRONG, CRASHED)),
    "prints the word of the checker": Attack("print('accepted', flush=True)\ndef f(x):\n    print('accepted', flush=True)\n    return 1", (WRONG,)),
    "writes the word of the checker as its values": forged(b"\x1eaccepted"),
    "writes no value": forged(b"\x1e[]"),
    "writes more values than there are calls": forged(b"\x1e[1, 7920]"),
    "writes a value that breaks out of its text": forged(b'\x1e[1]", "check": "pass'),
    "writes a test of its own": forged(b'\x1e{"fn_name": "f", "script": "f(3)", "check": "pass"}\n[1]'),
    "writes a test of its own after its values": forged(b'\x1e[1]\n{"fn_name": "f", "script": "f(3)", "check": "pass"}\n[1]'),
    "returns an integer that computes as another": equal_to_all("int", "type('B', (A,), dict.fromkeys(('__index__', '__int__', '__abs__', '__sub__', '__rsub__'), lambda *_: 7919))(1)"),
    "returns a number that is written as another": Attack("class A(float):\n    def __repr__(self): return '7919'\n    __str__ = __repr__\ndef f(x): return A(1)", (WRONG,)),
    "writes code as a value": forged(b'\x1e[{"Decimal": "print(1)"}]'),
    "writes a fraction of a huge size": forged(b'\x1e[{"Fraction": ["1e999999999"]}]'),
    "writes values nested too deeply": forged(b"\x1e" + b"[" * 100_000),
    "writes what is not text": forged(b"\x1e[\xff]"),
    "writes not a number": forged(b"\x1e[NaN]"),
    "returns an object equal to everything": Attack("class A:\n    def __eq__(self, other): return True\ndef f(x): return A()", (CRASHED,)),
    "returns an object of a false class": Attack("class A:\n    __class__ = int\n    def __eq__(self, other): return True\ndef f(x): return A()", (CRASHED,)),
    "returns a number equal to everything": equal_to_all("int", "A(1)"),
    "returns a decimal equal to everything": Attack("from decimal import Decimal as D\nclass A(D):\n    def __eq__(self, other): return True\n    __hash__ = D.__hash__\ndef f(x): return A(1)", (WRONG,)),
    "returns a mock": Attack("from unittest.mock import ANY\ndef f(x): return ANY", (CRASHED,)),
    "reads the expected value": Attack("""
import gc, os, sys
def texts():
    for path in ('main.py', '/dev/stdin', '/io/stdin', '/io/stdout', '/io/stderr', '/tmp/main.py', *os.listdir('/tmp'), *('/io/' + name for name in os.listdir('/io'))):
        try: yield open(path, errors='replace').read()
        except OSError: pass
    frame = sys._getframe()
    while frame:
        yield repr((frame.f_code.co_consts, frame.f_locals, list(frame.f_globals.values())))
        frame = frame.f_back
    gc.unfreeze()
    for thing in gc.get_objects():
        if isinstance(thing, (list, tuple, dict)) and len(thing) < 1000: yield from (t for t in (thing.values() if isinstance(thing, dict) else thing) if isinstance(t, str))
def f(x):
    backwards = ')3(f tressa'  # not to find itself
    return next((int(text.split('==')[-1]) for text in texts() if backwards in text[::-1]), 1)
""", (WRONG,)),
    "leaves modules for the check to import": Attack("for name in ('ast', 'json', 'sys', 'typing', 'collections', 'enum', 'decimal', 'checker'): open(f'/tmp/{name}.py', 'w').write('import os\\nos.write(1, b\"accepted\")\\nos._exit(0)')\ndef f(x): return 1", (WRONG,)),
    "leaves a process that writes the word of the checker": Attack("import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        os.write(1, b'accepted')\n        time.sleep(0.001)\ndef f(x): return 1", (WRONG, CRASHED)),
    "leaves a thread that writes the word of the checker": Attack("import os, threading\ndef late():\n    while True: os.write(1, b'accepted')\nthreading.Thread(target=late, daemon=True).start()\ndef f(x): return 1", (WRONG,)),
    "returns more than may be written": Attack("def f(x): return 'x' * (2 << 20)", (LOUD,)),
    "never ends": Attack("def f(x):\n    while True: pass", (SLOW,)),
    "fills memory": Attack("def f(x): return len([bytearray(b'x') * (1 << 20) for _ in range(1000)])", (FAT,)),
    "is the right one": Attack("def f(x): return 7_000 + 9_00 + 19"),
}  # fmt: skip

# Looks through its own memory for what earlier programs and tests may have left in that of the processes it came from.
# Says what it found, and in which kinds of places it found what it had put there itself: if it misses one, it proves
# nothing. Memory is found by having the kernel copy it to a file, which fails where there is none.
SEARCH = """
import ctypes, os
given = input()
libc = ctypes.CDLL(None, use_errno=True)
for function in ("sbrk", "malloc", "pthread_self"): getattr(libc, function).restype = ctypes.c_void_p
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
def own(place): return ("-gnihcraes"[::-1] + place).encode()
def address(thing): return ctypes.cast(thing, ctypes.c_void_p).value
in_arena = own("arena")
in_block = bytearray(own("block") + bytes(1 << 20))
in_heap = libc.malloc(64)
ctypes.memmove(in_heap, own("heap"), 15)
planted = {
    "arena": id(in_arena) + bytes.__basicsize__ - 1, "block": ctypes.addressof(ctypes.c_char.from_buffer(in_block)), "heap": in_heap,
}
words = [(place, own(place)[:8], own(place)[8:], where) for place, where in planted.items()]
for word in ("ecruos", "tuptuo", "tupni"):  # backwards: not to find itself
    if given.partition("-")[0] != word[::-1]: words.append((word[::-1], word[::-1].encode(), b"-of-another", None))
anchors = [
    *planted.values(), libc.sbrk(0), address(libc.malloc), ctypes.c_void_p.in_dll(libc, "environ").value,
    libc.pthread_self(), address(ctypes.pythonapi.PyObject_Repr), id(type),
]
PAGE, REACH = 4096, 48 << 20
file = os.open("memory", os.O_RDWR | os.O_CREAT)
found, pages = set(), []
def look():
    data = os.pread(file, len(pages) * PAGE, 0)
    for name, start, rest, where in words:
        place = data.find(start)
        while place >= 0:
            if data.startswith(rest, place + len(start)) and where in (None, pages[place // PAGE] + place % PAGE): found.add(name)
            place = data.find(start, place + 1)
    os.lseek(file, 0, 0)
    pages.clear()
for page in sorted({page for anchor in anchors for page in range(anchor - REACH & -PAGE, anchor + REACH, PAGE) if page > 0}):
    if libc.write(file, page, PAGE) == PAGE:
        pages.append(page)
        if len(pages) == 1024: look()
look()
print(sorted(found))
"""
SEARCH_FINDS_ITS_OWN = "['arena', 'block', 'heap']"

# Honest programs that use what the walls are near to, under the default limits; each prints "held" where it works. Those
# with a runtime error cannot work in the sandbox.
HONEST: dict[str, Attack] = {
    "asyncio.run": Attack("import asyncio\nasync def main():\n    await asyncio.gather(*(asyncio.sleep(0.01) for _ in range(50)))\n    print('held')\nasyncio.run(main())"),
    # Its judge stops it now and then, in order to measure it.
    "short-lived processes beside ones that wait": Attack(
        "import os, select, time\nours, theirs = os.pipe()\nfor _ in range(3):\n    if os.fork() == 0:\n        os.close(theirs)\n        ready = select.select([ours], [], [])[0]\n        os._exit(0 if ready and os.read(ours, 1) == b'' else 1)\nstatuses = []\nfor number in range(150):\n    child = os.fork()\n    if child == 0:\n        time.sleep(0.004)\n        os._exit(number % 3)\n    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == number % 3)\nos.close(theirs)\nprint('held' if all(statuses) and {os.wait()[1] for _ in range(3)} == {0} else 'wrong')"
    ),
    "asyncio.create_subprocess_exec": Attack(
        "import asyncio, sys\nasync def main():\n    p = await asyncio.create_subprocess_exec(sys.executable, '-S', '-c', 'print(input()[::-1])', stdin=-1, stdout=-1)\n    print((await p.communicate(b'dleh\\n'))[0].decode())\nasyncio.run(main())",
    ),
    "ThreadPoolExecutor(30)": Attack("from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(30) as pool: print('held' if sum(pool.map(abs, range(-100, 0))) == 5050 else 'wrong')"),
    "ProcessPoolExecutor(2)": Attack("from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2) as pool: print('held' if sum(pool.map(abs, range(-100, 0))) == 5050 else 'wrong')"),
    "multiprocessing.Pool(2)": Attack("from multiprocessing import Pool\nwith Pool(2) as pool: print('held' if sum(pool.map(abs, range(-100, 0))) == 5050 else 'wrong')"),
    "multiprocessing.Queue, Pipe, Value and Array": Attack(
        """
import multiprocessing as m
queue, (ours, theirs), number, array = m.Queue(), m.Pipe(), m.Value("i", 1), m.Array("i", 1000)
def work():
    with number.get_lock(): number.value += 1
    array[3] = 7
    queue.put("he")
    theirs.send("ld")
process = m.Process(target=work)
process.start()
said = queue.get() + ours.recv()
process.join()
print(said if (number.value, array[3]) == (2, 7) else "wrong")
"""
    ),
    "modules of the library that ask the machine": Attack(
        """
import datetime, faulthandler, locale, logging, os, platform, random, secrets, tempfile, time, tracemalloc, uuid, warnings, zoneinfo
os.getloadavg(), os.uname(), platform.platform()
uuid.uuid4(), uuid.uuid1(), secrets.token_hex(), random.random()
locale.setlocale(locale.LC_ALL, "")
time.localtime(), datetime.datetime.now(zoneinfo.ZoneInfo("UTC"))
faulthandler.enable(), tracemalloc.start()
logging.warning("x"), warnings.warn("y")
with tempfile.TemporaryFile("w+") as file:
    file.write("held"), file.seek(0), print(file.read())
"""
    ),
    "multiprocessing.shared_memory": Attack("from multiprocessing.shared_memory import SharedMemory as S\ns = S(create=True, size=1 << 16)\ns.buf[5] = 7\nt = S(s.name)\nprint('held' if t.buf[5] == 7 else 'wrong')\nt.close(); s.close(); s.unlink()"),
    "multiprocessing.Lock, Event, Barrier": Attack("import multiprocessing as m\nl, e, b = m.Lock(), m.Event(), m.Barrier(2)\np = m.Process(target=b.wait)\np.start()\nb.wait()\np.join()\ne.set()\nwith l: print('held')"),
    "multiprocessing, spawned": Attack("import multiprocessing as m\ndef f(q): q.put('held')\nif __name__ == '__main__':\n    m.set_start_method('spawn')\n    q = m.SimpleQueue()\n    p = m.Process(target=f, args=(q,))\n    p.start()\n    print(q.get())\n    p.join()"),
    "multiprocessing.Manager": Attack("import multiprocessing as m\nwith m.Manager() as manager: print(manager.dict(x='held')['x'])", (CRASHED,)),
    "multiprocessing, from a fork server": Attack("import multiprocessing as m\ndef f(q): q.put('held')\nif __name__ == '__main__':\n    m.set_start_method('forkserver')\n    q = m.SimpleQueue()\n    p = m.Process(target=f, args=(q,))\n    p.start()\n    print(q.get())\n    p.join()", (CRASHED,)),
    "mmap.mmap(-1, n)": Attack("import mmap\nprint('held', len(mmap.mmap(-1, 4096)))", (CRASHED,)),
    "mmap.mmap(-1, n, MAP_PRIVATE)": Attack("import mmap\nmmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nprint('held')"),
    "mmap of a file": Attack("import mmap\nopen('f', 'wb').write(bytes(9999))\nwith open('f', 'r+b') as f: m = mmap.mmap(f.fileno(), 0); m[5] = 7; m.flush()\nprint('held' if open('f', 'rb').read()[5] == 7 else 'wrong')"),
    "mmap of standard input": Attack("import mmap\nm = mmap.mmap(0, 0, access=mmap.ACCESS_READ)\nprint(m[:4][::-1].decode())"),
    "open('/dev/stdin')": Attack("print(open('/dev/stdin').read().strip()[::-1])"),
    "the devices that every machine has": Attack(
        "import os\nos.write(os.open('/dev/null', os.O_WRONLY), b'x')\nassert open('/dev/null').read() == ''\nassert open('/dev/zero', 'rb').read(3) == bytes(3)\nfor name in ('random', 'urandom'): assert len(open('/dev/' + name, 'rb').read(9)) == 9\ntry: open('/dev/full', 'w', 1).write('x\\n')\nexcept OSError as error: print('held' if error.errno == 28 else error)"
    ),
    "sys.stderr to os.devnull": Attack("import os, sys\nsys.stderr = open(os.devnull, 'w')\nprint('held')"),
    "subprocess.DEVNULL": Attack("import subprocess, sys\nr = subprocess.run([sys.executable, '-S', '-c', 'import os; os.write(1, bytes(9)); os._exit(len(os.read(0, 9)))'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\nprint('held' if r.returncode == 0 else r)"),
    "os.fsync, os.nice": Attack("import os\nwith open('f', 'w') as f: f.write('x'); f.flush(); os.fsync(f.fileno())\nos.nice(5)\nprint('held')"),
    "many small writes into a pipe": Attack("import os\nours, theirs = os.pipe()\nfor n in range(3000): os.write(theirs, b'%d\\n' % n)\nos.close(theirs)\nprint('held' if len(os.read(ours, 1 << 16)) == 13890 else '')"),
    "multiprocessing.SimpleQueue before it is read": Attack("import multiprocessing as m\nq = m.SimpleQueue()\nfor n in range(1000): q.put(n)\nprint('held' if [q.get() for _ in range(1000)] == list(range(1000)) else '')"),
    "hundreds of pipes, one after the other": Attack("import os\nfor _ in range(2000):\n    for end in os.pipe(): os.close(end)\nprint('held')"),
    "pipes of an executed interpreter": Attack("import subprocess, sys\nprint(subprocess.run([sys.executable, '-S', '-c', 'import os; a, b = os.pipe(); os.write(b, b\"held\"); print(os.read(a, 9).decode())'], capture_output=True, text=True).stdout)"),
    "os.pipe2 and its flags": Attack("import os\nours, theirs = os.pipe2(os.O_NONBLOCK)\ntry: os.read(ours, 1)\nexcept BlockingIOError: os.write(theirs, b'held')\nprint(os.read(ours, 9).decode() if os.get_inheritable(ours) else 'closed in children')"),
    "a pipe whose other end is closed": Attack("import os\nours, theirs = os.pipe()\nos.write(theirs, b'held')\nos.close(theirs)\nprint(os.read(ours, 9).decode() + os.read(ours, 9).decode())\nours, theirs = os.pipe()\nos.close(ours)\ntry: os.write(theirs, b'x')\nexcept BrokenPipeError: pass"),
    "open('/proc/self/fd/0')": Attack("print(open('/proc/self/fd/0').read().strip()[::-1])", (CRASHED,)),
    "open('/dev/stdout', 'w')": Attack("with open('/dev/stdout', 'w') as f: f.write('held')"),
    "open(0) in a child": Attack("import os\nif os.fork() == 0:\n    print(open('/dev/stdin').read().strip()[::-1], flush=True)\n    os._exit(0)\nos.wait()"),
    "subprocess of sys.executable": Attack("import subprocess, sys\nprint(subprocess.run([sys.executable, '-S', '-c', 'print(input()[::-1])'], input='dleh', capture_output=True, text=True).stdout)"),
    "os.popen, os.system": Attack("import os\nprint(os.popen('echo held').read())", (CRASHED,)),
    "tempfile": Attack("import tempfile\nwith tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile('w+', dir=d) as f:\n    f.write('held'); f.seek(0); print(f.read())"),
    "sqlite3 in memory": Attack("import sqlite3\nc = sqlite3.connect(':memory:')\nc.execute('create table t(x)')\nc.execute('insert into t values (?)', ('held',))\nprint(*c.execute('select x from t').fetchone())"),
    "sqlite3 on a file": Attack("import sqlite3\nwith sqlite3.connect('a.db') as c:\n    c.execute('create table t(x)')\n    c.execute('insert into t values (?)', ('held',))\nprint(*sqlite3.connect('a.db').execute('select x from t').fetchone())", (CRASHED,)),
    "sqlite3 on a file, without locks": Attack("import sqlite3\nwith sqlite3.connect('file:a.db?nolock=1', uri=True) as c:\n    c.execute('create table t(x)')\n    c.execute('insert into t values (?)', ('held',))\nprint(*sqlite3.connect('file:a.db?nolock=1', uri=True).execute('select x from t').fetchone())"),
    "fcntl.flock": Attack("import fcntl\nfcntl.flock(open('lock', 'w'), fcntl.LOCK_EX)\nprint('held')", (CRASHED,)),
    "os.cpu_count": Attack("import os\nprint('held' if os.cpu_count() >= 1 and len(os.sched_getaffinity(0)) >= 1 else os.cpu_count())"),
    "resource.getrusage": Attack("import resource as r\nx = bytearray(30 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nu = r.getrusage(r.RUSAGE_SELF)\nprint('held' if u.ru_maxrss > 30000 and u.ru_utime >= 0 else u)"),
    "resource.setrlimit of the stack": Attack("import resource as r, sys\nr.setrlimit(r.RLIMIT_STACK, (r.getrlimit(r.RLIMIT_STACK)[0],) * 2)\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint('held' if f(50000) == 50000 else '')"),
    "open('/proc/self/status')": Attack("print(open('/proc/self/status').read())", (CRASHED,)),
    "signal.alarm": Attack("import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('held'))\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\nsignal.pause()"),
    "signal.set_wakeup_fd": Attack("import signal, socket\na, b = socket.socketpair()\na.setblocking(False)\nsignal.set_wakeup_fd(a.fileno())\nsignal.signal(signal.SIGUSR1, lambda *_: None)\nsignal.raise_signal(signal.SIGUSR1)\nprint('held' if b.recv(1) else '')"),
    "a pipe with 60 KB before it is read": Attack("import os\nours, theirs = os.pipe()\nos.write(theirs, bytes(60000))\nprint('held' if len(os.read(ours, 60000)) == 60000 else 'short')"),
    "select, poll": Attack("import os, select\nours, theirs = os.pipe()\nos.write(theirs, b'x')\np = select.poll()\np.register(ours)\nprint('held' if select.select([ours], [], [], 1)[0] and p.poll(9) else '')"),
    "select.epoll": Attack("import select\nselect.epoll()", (CRASHED,)),
    "selectors": Attack("import os, selectors\nours, theirs = os.pipe()\nos.write(theirs, b'x')\ns = selectors.DefaultSelector()\ns.register(ours, selectors.EVENT_READ)\nprint('held' if s.select(1) else '')"),
    "os.preadv, os.pwritev": Attack("import os\nf = os.open('f', os.O_CREAT | os.O_RDWR)\nos.pwritev(f, [b'he', b'ld'], 0)\nb = bytearray(4)\nos.preadv(f, [b], 0)\nprint(b.decode())"),
    "threads with large stacks": Attack("import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nt = threading.Thread(target=lambda: print('held' if f(30000) == 30000 else ''))\nt.start()\nt.join()"),
    "half its memory shared by a pool": Attack("from multiprocessing import Pool\nimport time\nx = bytearray(b'x') * (500 << 20)\ndef f(i): time.sleep(0.06); return x[i]\nwith Pool(4) as pool: print('held' if set(pool.map(f, range(12))) == {120} else '')"),
    "subprocesses of a program with 60 % of its memory": Attack("import subprocess\nx = bytearray(b'x') * (600 << 20)\nfor _ in range(400):\n    try: subprocess.run(['/nowhere'])\n    except OSError: pass\nprint('held')"),
    "importing sockets, servers, HTTP": Attack("import http.client, http.server, socket, socketserver, ssl, urllib.request\nprint('held')"),
}  # fmt: skip
