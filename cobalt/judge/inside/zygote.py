"""The processes of a sandbox: a warm interpreter, forked for each program, and that fork once more for each test.

    zygote     waits for a program; never touches its source
    compiler   forked for a program: compiles it, then for each test mounts two empty file systems and forks
    test       in a PID namespace and a session of its own: drops every privilege, becomes the program

The compiler measures and ends the test's processes from outside their namespace: they cannot see it, signal it, or
reach its descriptors, and the only things that come back from them are an exit status and what they wrote to two files.

What this protects against: reading or writing anything of the host or of another test; the network; exhausting
memory, processes, disk, descriptors or output; outliving the test; forging a result. What it does not: defects
of the kernel itself (a system call filter narrows them); side channels through shared hardware; telling the
time and the machine's kind. Limits on memory of several processes together are enforced by looking every 50 ms, and
by the kernel where the sandbox has a memory cgroup (`cobalt.judge.cgroups`).

Frames on the socket, both ways: a letter and two lengths, then an object and bytes. Objects come here in `marshal`'s
form, which needs no module, and leave as JSON.
    to here    P limits, source | T {"files": {path: bytes}}, input | E (end of the program)
    from here  R ready | C {"failure": text or null} | D facts, output | X {"status": n} (the compiler died)
"""

# Every module that is loaded here, and every page that it takes, is copied for each test: no pathlib, json, re, typing.
# ruff: noqa: PTH103, PTH109, PTH120, SIM105

from __future__ import annotations

import gc
import marshal
import os
import resource
import select
import sys
import time
from _json import encode_basestring_ascii as _quoted
from _struct import Struct

from . import linux, program, syscall_filter, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

HEADER = Struct("!cII")
TICK_SECONDS = 0.05
LONGEST_STARVATION = 20  # times the wall limit, however busy the machine
STDERR_BYTES = 65536
STACK_BYTES = 120 << 20  # what the kernel leaves below the mappings for the main thread's stack
LARGEST_WARMED = 1 << 18  # bytes of a program for which modules are imported beforehand; its words take 24 times that
PENDING_SIGNALS = 256  # queued signals and timers of a test

FOLDER = "/tmp"  # a program's own, in which it starts
STREAMS = "/io"  # where its standard streams lie; /dev/stdin and so on lead there
MODULES = f"{FOLDER}/inside"  # where these modules lie until programs run
# Descriptors: those of a test's streams, the ends of a pipe over which it says that it is ready, and the sandbox's own.
_INPUT, _OUTPUT, _ERRORS, _READ, _READY, _SOCKET, _PROC, _OOM = 0, 1, 2, 3, 4, 10, 11, 12
_JUDGE_HAS_GONE = 3  # how a compiler ends that finds the socket closed
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# For the kernel, short of memory: the program counts for more than the compiler by all the memory there is, so that it
# is ended first, however large the compiler is.
_PROGRAM_FIRST, _COMPILER_NEXT = b"1000", b"0"
_SIGKILL = 9  # as in `signal`, which loads half a dozen modules

# Imported once for a program that mentions them, so that its own import of them costs its tests nothing; not for other
# programs, whose tests would cost more by each page there is. None that imports `threading`, which would have to be
# told of forks.
_WARM = frozenset((
    "array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string",
    "typing",
))  # fmt: skip
_LETTERS = bytes(byte if chr(byte).islower() and byte < 128 else ord(" ") for byte in range(256))


class _Closed(Exception):
    """The judge has gone."""


def serve(arguments: list[str]) -> tuple[list[types.CodeType], dict[str, Any]]:
    """Serve programs until the judge goes; returns only in a test's process, with what to execute there, and where.

    Args:
        arguments: The script's; the second is the socket's descriptor, the others are options as `name=value`:
            isolated (1 or 0), uid (the user that programs run as; 0 to stay), kernel (1 to count what the kernel holds
            for a program), packages (a folder, or empty), top_level_return (1 where programs may return),
            paper_guard (1 where programs have what the authors' guard leaves).
    """
    _take_descriptors(int(arguments[1]))
    given = dict(argument.split("=", 1) for argument in arguments[2:])
    options: dict[str, Any] = {
        "isolated": given["isolated"] == "1",
        "uid": int(given["uid"]),
        "kernel": given["kernel"] == "1",
        "packages": given["packages"] or None,
    }
    if given["top_level_return"] == "1":
        program.prepare_top_level_return()
    if given["paper_guard"] == "1":
        program.prepare_paper_guard()
    options["hidden"] = [name for name in sys.modules if name.partition(".")[0] in ("inside", "ctypes", "_ctypes")]
    _provide_exits()
    if options["isolated"]:
        _close_the_sandbox()
    gc.disable()
    gc.collect()
    gc.freeze()
    _send(b"R", {}, b"")
    readable = select.poll()
    readable.register(_SOCKET, select.POLLIN)
    while True:
        # The compiler reads the program, so that no later one can find it in memory that this process has freed.
        readable.poll()
        compiler = os.fork()
        if compiler == 0:
            return _serve_program(options, *_receive_program())
        _, raw = os.waitpid(compiler, 0)
        status = os.waitstatus_to_exitcode(raw)
        if status == _JUDGE_HAS_GONE:
            os._exit(0)
        if status != 0:
            if options["isolated"]:
                _end_the_rest()
            _send(b"X", {"status": status}, b"")


def _end_the_rest() -> None:
    """End a test whose compiler has died: every process of the sandbox but its first and this one."""
    try:
        os.kill(-1, _SIGKILL)
    except ProcessLookupError:
        pass  # nothing is left


def _take_descriptors(socket: int) -> None:
    """Put the sandbox's own descriptors into their places, and close what was left open by others."""
    if socket != _SOCKET:
        os.dup2(socket, _SOCKET)
    os.closerange(_READ, _SOCKET)
    os.closerange(_SOCKET + 1, 1 << 20)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(proc, _PROC)
    os.close(proc)


def _close_the_sandbox() -> None:
    """Take from all processes to come what only the start needed, and filter their system calls.

    Raises:
        OSError: the kernel refused; then no program may run.
    """
    try:
        os.setgroups([])
    except OSError:
        pass  # this user may not, and has no groups that matter inside
    for target in ("/proc", MODULES):  # what is open in them stays usable
        linux.detach_mount(target)
    linux.lock_privileges()
    linux.drop_inheritable_capabilities()
    code = syscall_filter.filter_program()
    if code is None:
        raise OSError(f"there is no system call filter for the architecture {os.uname().machine}")
    linux.install_filter(code)


def _provide_exits() -> None:
    # Python's `site` module makes these; programs run without it, as under `python -S`.
    import builtins
    from _sitebuiltins import Quitter

    for name in ("exit", "quit"):
        setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))


def _receive_program() -> tuple[dict[str, Any], bytes]:
    """The limits and source of the next program; what is left of one whose compiler died is passed over."""
    try:
        while True:
            kind, limits, source = _receive()
            if kind == b"P":
                return limits, bytes(source)
    except _Closed:
        os._exit(_JUDGE_HAS_GONE)


def _serve_program(
    options: dict[str, Any], limits: dict[str, Any], source: bytes
) -> tuple[list[types.CodeType], dict[str, Any]]:
    failure, codes = _compile(limits, source)
    _send(b"C", {"failure": failure}, b"")
    if len(source) <= LARGEST_WARMED:
        for word in _WARM.intersection(source.translate(_LETTERS).decode().split()):
            __import__(word)
    os.umask(0)  # each test sets its own
    _set_inherited_limits(limits)
    score = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=_PROC)
    os.dup2(score, _OOM)
    os.close(score)
    os.write(_OOM, _COMPILER_NEXT)
    folder = FOLDER if options["isolated"] else os.getcwd()
    program.prepare(options["packages"], options["hidden"], folder)
    # The files that are opened for a test get the numbers of its streams, and it need not move them.
    os.closerange(_INPUT, _READ)
    gc.freeze()
    try:
        while True:
            request, facts, given = _receive()
            if request != b"T":
                os._exit(0)
            if _run_test(options, limits, given):
                files = facts.get("files", {})
                _become_program(options, limits, source, files)
                beside = {path.partition("/")[0].removesuffix(".py") for path in files}
                return codes, program.start_afresh(folder, beside)
    except _Closed:
        os._exit(_JUDGE_HAS_GONE)


def _compile(limits: dict[str, Any], source: bytes) -> tuple[str | None, list[types.CodeType]]:
    """Compile within the limits; returns what the compiler said if the source is no program."""
    if len(source) > limits["file_bytes"]:  # its process could not write it
        return f"the program is larger than {limits['file_bytes']} bytes\n", []
    before = [(kind, resource.getrlimit(kind)) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)]
    resource.setrlimit(resource.RLIMIT_CPU, (int(limits["cpu_seconds"]) + 1, before[0][1][1]))
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], before[1][1][1]))
    failure, codes = None, []
    try:
        codes = program.compile_source(source, limits["allow_top_level_return"])
    except program.FAILURES as error:
        failure = error
    for limit, values in before:
        resource.setrlimit(limit, values)
    return (None if failure is None else program.failure_text(failure)), codes


def _open_streams(options: dict[str, Any], limits: dict[str, Any], given: bytearray) -> None:
    """Open a test's standard input, output and error, in file systems made for it alone."""
    if not options["isolated"]:
        for name in ("stdin", "stdout", "stderr"):
            os.memfd_create(name, 0)
        _write_all(_INPUT, given)
        os.lseek(_INPUT, 0, os.SEEK_SET)
        return
    quiet = linux.MS_NOSUID | linux.MS_NODEV
    # Each of its files fills whole pages; the file system itself needs one.
    room = len(given) + 2 * limits["file_bytes"] + 4 * resource.getpagesize()
    options["mounts"] = [
        linux.Mount("tmpfs", FOLDER, quiet, f"size={limits['file_bytes']},nr_inodes=4096,mode=1777"),
        linux.Mount("tmpfs", STREAMS, quiet, f"size={room},nr_inodes=8,mode=755"),
    ]
    for mount in options["mounts"]:
        mount.make()
    # Each gets the lowest number that is free.
    new = os.O_CREAT | os.O_EXCL | os.O_RDWR
    _write_all(os.open(f"{STREAMS}/stdin", new, 0o444), given)
    os.close(_INPUT)
    os.set_inheritable(os.open(f"{STREAMS}/stdin", os.O_RDONLY), True)
    os.set_inheritable(os.open(f"{STREAMS}/stdout", new, 0o666), True)
    os.set_inheritable(os.open(f"{STREAMS}/stderr", new, 0o666), True)


def _run_test(options: dict[str, Any], limits: dict[str, Any], given: bytearray) -> bool:
    """Fork a test and report its end; True in the test's own process, its standard streams in place."""
    _open_streams(options, limits, given)
    limits = limits | {"given": len(given)}
    _forget(given)
    # Only a test whose isolation is complete writes here, and closes it before the program starts: a failed set-up
    # cannot look like a verdict, nor a verdict be made to look like a failed set-up.
    os.pipe()
    os.write(_OOM, _PROGRAM_FIRST)
    started = time.monotonic()
    child = linux.fork(linux.CLONE_NEWPID if options["isolated"] else 0)
    if child == 0:
        return True
    os.write(_OOM, _COMPILER_NEXT)
    os.close(_READY)
    end, seen, idle, memory = _watch(child, started, limits, options)
    if not options["isolated"]:
        try:
            os.killpg(child, _SIGKILL)
        except ProcessLookupError:
            pass
    own_limit = resource.prlimit(child, resource.RLIMIT_CPU)[1] < _cpu_limit(limits)
    _, raw, used = os.wait4(child, 0)
    wall = time.monotonic() - started
    size = os.fstat(_OUTPUT).st_size
    facts = {
        "ready": os.read(_READ, 1) == b"1",
        "end": end,
        "status": os.waitstatus_to_exitcode(raw),
        # A program that lowers its limit on CPU time is killed by the kernel, as one is where memory is short.
        "own_limit": own_limit,
        # Processes that were alive at the end are in no one's sum. Ended ones are in their parent's, since no program
        # can have the kernel take them away unseen, and orphans in the first process's.
        "cpu": max(used.ru_utime + used.ru_stime, seen),
        "wall": wall,
        "idle": idle,
        "peak": max(memory, used.ru_maxrss * 1024),
        "size": size,
    }
    # Beyond the limit only what feedback shows is of use.
    output = _parts(size, limits["output_bytes"])
    errors = _parts(os.fstat(_ERRORS).st_size, STDERR_BYTES)
    lengths = [sum(count for _, count in parts) for parts in (output, errors)]
    _send(b"D", facts | {"output": lengths[0]}, b"", more=sum(lengths))
    for descriptor, parts in ((_OUTPUT, output), (_ERRORS, errors)):
        for begin, count in parts:
            _send_file(descriptor, begin, count)
    os.closerange(_INPUT, _READ + 1)
    for mount in options.get("mounts", ()):
        mount.detach()
    return False


def _forget(data: bytearray) -> None:
    """Overwrite what a test was given, and free it: the tests to come are copies of this process."""
    zeros = bytes(1 << 16)
    for begin in range(0, len(data), len(zeros)):
        count = min(len(zeros), len(data) - begin)
        data[begin : begin + count] = zeros[:count]
    data.clear()


def _watch(
    child: int, started: float, limits: dict[str, Any], options: dict[str, Any]
) -> tuple[str, float, float, int]:
    """Wait for a test's end, and bring it about at a limit.

    Returns which end, the most CPU seconds that were seen, the seconds in which nothing of the test computed or stood
    ready to, and the most bytes of memory that were seen.
    """
    descriptor = os.pidfd_open(child)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    limit = limits["wall_seconds"]
    idle, before, last, most, peak, looking = 0.0, -1, started, 0, 0, 0.0
    end = "exit"
    while not poll.poll(TICK_SECONDS * 1000):
        now, computed = time.monotonic(), time.process_time()
        ticks, memory, runnable = _usage(child, limits, options)
        # Only time in which no process of the test computed or stood ready to counts towards the wall limit,
        # and a look that comes late, because this process had no core, counts as an ordinary one: a busy
        # machine takes nothing from a program.
        if ticks == before and not runnable:
            idle += min(now - last, 2 * TICK_SECONDS + looking)
        looking = time.process_time() - computed  # what the look itself takes is the program's doing
        before, last, most, peak = ticks, now, max(most, ticks), max(peak, memory)
        if ticks / _CLOCK_TICKS > limits["cpu_seconds"]:
            end = "cpu"
        elif memory > limits["memory_bytes"]:
            end = "memory"
        elif os.fstat(_OUTPUT).st_size > limits["output_bytes"]:
            end = "output"
        elif idle > limit or now - started > LONGEST_STARVATION * limit:
            end = "wall"
        if end != "exit":
            os.kill(child, _SIGKILL)
            poll.poll()
            break
    os.close(descriptor)
    return end, most / _CLOCK_TICKS, idle, peak


def _usage(child: int, limits: dict[str, Any], options: dict[str, Any]) -> tuple[int, int, bool]:
    """A test's processes and files together; see `usage.measure`."""
    most = limits["memory_bytes"]
    if not options["isolated"]:
        return usage.measure(_PROC, [child], most, kernel=False)
    # Every process in this namespace but its first, the zygote and this one belongs to the test.
    pids = usage.processes(_PROC, (1, os.getppid(), os.getpid()))
    stored = usage.stored(FOLDER) + max(0, usage.stored(STREAMS) - limits["given"])
    ticks, memory, runnable = usage.measure(_PROC, pids, most - stored, kernel=options["kernel"])
    return ticks, memory + stored, runnable


def _become_program(options: dict[str, Any], limits: dict[str, Any], source: bytes, files: dict[str, bytes]) -> None:
    """Shed everything of the compiler: its session, privileges, descriptors, limits."""
    try:
        os.setsid()  # and with it a process group and an autogroup of its own
        os.umask(0o022)
        uid = options["uid"]
        if options["isolated"]:
            os.chdir(FOLDER)
            # The limit on processes counts a user's; without a user of their own, the sandbox's three count too.
            _set_limits(limits, 0 if uid else 3)
            if uid:  # capabilities go with the user
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            else:
                linux.drop_capabilities()
        else:
            _set_limits(limits, 0)
        os.close(_READ)
        os.closerange(_READY + 1, 1 << 20)
        _write_new(program.FILE_NAME, source)  # shown in tracebacks
        for path, contents in files.items():
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            _write_new(path, contents)
        os.write(_READY, b"1")
        os.close(_READY)
    except BaseException as error:  # noqa: BLE001 - isolation that cannot be built must not become a verdict
        os.write(_ERRORS, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def _write_new(path: str, data: bytes) -> None:
    """Write a file without `open`, whose text layers cost a test's process dozens of page faults."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    _write_all(descriptor, data)
    os.close(descriptor)


def _cpu_limit(limits: dict[str, Any]) -> int:
    """The kernel's limit on CPU seconds of a process, should the compiler be late to end it."""
    return int(limits["cpu_seconds"]) + 1


def _set_limits(limits: dict[str, Any], others: int) -> None:
    """The limits of a test that its compiler could not live with itself."""
    for kind, value in (
        (resource.RLIMIT_CPU, _cpu_limit(limits)),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"] + others),
    ):
        resource.setrlimit(kind, (value, value))


def _set_inherited_limits(limits: dict[str, Any]) -> None:
    """The others, which a compiler has, and its tests inherit."""
    for kind, value in (
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, PENDING_SIGNALS),
    ):
        resource.setrlimit(kind, (value, value))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))


def _parts(size: int, limit: int) -> list[tuple[int, int]]:
    """What to send of a file, as beginnings and lengths: all of it, or of one larger than the limit its two ends."""
    if size > limit:
        end = min(4096, limit)
        return [(0, end), (size - end, end)]
    return [(0, size)] if size else []


def _send_file(descriptor: int, begin: int, count: int) -> None:
    buffer = bytearray(min(count, 1 << 16))
    while count > 0:
        with memoryview(buffer)[: min(count, len(buffer))] as part:
            read = os.preadv(descriptor, [part], begin)
            _write_all(_SOCKET, part[:read])
        begin, count = begin + read, count - read
    buffer[:] = bytes(len(buffer))  # the tests to come are copies of this process


def _send(kind: bytes, facts: dict[str, Any], data: bytes, *, more: int = 0) -> None:
    """Send a frame, or, with `more`, the beginning of one whose last bytes the caller sends."""
    head = "{" + ", ".join(f"{_quoted(name)}: {_as_json(value)}" for name, value in facts.items()) + "}"
    _write_all(_SOCKET, HEADER.pack(kind, len(head), len(data) + more) + head.encode() + data)


def _as_json(value: str | float | None) -> str:
    if isinstance(value, str):
        return str(_quoted(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def _receive() -> tuple[bytes, dict[str, Any], bytearray]:
    kind, head, data = HEADER.unpack(_read_exactly(HEADER.size))
    facts = marshal.loads(_read_exactly(head)) if head else {}
    return kind, facts, _read_exactly(data)


def _read_exactly(count: int) -> bytearray:
    buffer = bytearray(count)
    with memoryview(buffer) as view:
        filled = 0
        while filled < count:
            read = os.readv(_SOCKET, [view[filled : filled + (1 << 20)]])
            if read == 0:
                raise _Closed
            filled += read
    return buffer


def _write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except (BrokenPipeError, ConnectionResetError):
            raise _Closed from None
