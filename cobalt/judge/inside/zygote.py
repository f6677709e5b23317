"""The processes of a sandbox: a warm interpreter, forked for each program, and that fork once more for each test.

    zygote     waits for a program; never touches its source
    compiler   forked for a program: compiles it, then for each test forks
    test       in its own PID, IPC and mount namespaces: drops every privilege, becomes the program

The compiler measures and ends the test's processes from outside their namespaces: they cannot see it, signal
it, or reach its descriptors, and the only things that come back from them are an exit status and what they
wrote to two anonymous files.

What this protects against: reading or writing anything of the host or of another test; the network; exhausting
memory, processes, disk, descriptors or output; outliving the test; forging a result. What it does not: defects
of the kernel itself (a system call filter narrows them); side channels through shared hardware; telling the
time and the machine's kind. Limits on memory of several processes together are enforced by looking every 50 ms.

Frames on the socket, both ways: a letter and two lengths, then a JSON object and bytes.
    to here    P limits, source | T {"files": {path: base64}}, input | E (end of the program)
    from here  R ready | C {"failure": text or null} | D facts, output | X {"status": n} (the compiler died)
"""

# pathlib would be loaded into every program's process.
# ruff: noqa: PTH103, PTH109, PTH120, PTH123, PTH208

import contextlib
import gc
import importlib
import json
import os
import re
import resource
import select
import signal
import struct
import sys
import time
import types
from typing import Any

from . import linux, program

HEADER = struct.Struct("!cII")
TICK_SECONDS = 0.05
LONGEST_STARVATION = 20  # times the wall limit, however busy the machine
STDERR_BYTES = 65536
STACK_BYTES = 120 << 20  # what the kernel leaves below the mappings for the main thread's stack

FOLDER = "/tmp"  # a program's own, in which it starts
_NAMESPACES = linux.CLONE_NEWPID | linux.CLONE_NEWNS | linux.CLONE_NEWIPC
_JUDGE_HAS_GONE = 3  # how a compiler ends that finds the socket closed
_READY = 3  # a test's descriptor, until the program starts
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Imported once for a program that mentions them, so that its own import of them costs its tests nothing; not for other
# programs, whose tests would cost more by each page there is. None that imports `threading`, which would have to be
# told of forks.
_WARM = frozenset((
    "array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "io", "itertools", "math", "operator", "random", "re", "statistics", "string", "typing",
))  # fmt: skip
_WORD = re.compile(rb"[a-z]+")


class _Closed(Exception):
    """The judge has gone."""


def serve(arguments: list[str]) -> tuple[list[types.CodeType], dict[str, Any]]:
    """Serve programs until the judge goes; returns only in a test's process, with what to execute there, and where.

    Args:
        arguments: The script's; the second is the socket's descriptor, the third a JSON object of options:
            `isolated`, `uid` (the user programs run as; 0 to stay), `packages` (a folder or null).
    """
    socket, options = int(arguments[1]), json.loads(arguments[2])
    hidden = [name for name in sys.modules if name.partition(".")[0] in ("inside", "ctypes", "_ctypes")]
    _provide_exits()
    filters = linux.seccomp_programs() if options["isolated"] else None
    options["filter"] = None if filters is None else linux.SeccompFilter(filters[1])
    options["hidden"] = hidden
    if options["isolated"]:
        with contextlib.suppress(OSError):
            os.setgroups([])
    if filters is not None:
        linux.SeccompFilter(filters[0]).install()
    gc.disable()
    gc.collect()
    gc.freeze()
    _send(socket, b"R", {"filter": filters is not None}, b"")
    readable = select.poll()
    readable.register(socket, select.POLLIN)
    while True:
        # The compiler reads the program, so that no later one can find it in memory that this process has freed.
        readable.poll()
        compiler = os.fork()
        if compiler == 0:
            return _serve_program(socket, options, *_receive_program(socket))
        _, raw = os.waitpid(compiler, 0)
        status = os.waitstatus_to_exitcode(raw)
        if status == _JUDGE_HAS_GONE:
            os._exit(0)
        if status != 0:
            _send(socket, b"X", {"status": status}, b"")


def _provide_exits() -> None:
    # Python's `site` module makes these; programs run without it, as under `python -S`.
    import builtins

    quitter = importlib.import_module("_sitebuiltins").Quitter
    for name in ("exit", "quit"):
        setattr(builtins, name, quitter(name, "Ctrl-D (i.e. EOF)"))


def _receive_program(socket: int) -> tuple[dict[str, Any], bytes]:
    """The limits and source of the next program; what is left of one whose compiler died is passed over."""
    try:
        while True:
            kind, limits, source = _receive(socket)
            if kind == b"P":
                return limits, bytes(source)
    except _Closed:
        os._exit(_JUDGE_HAS_GONE)


def _serve_program(
    socket: int, options: dict[str, Any], limits: dict[str, Any], source: bytes
) -> tuple[list[types.CodeType], dict[str, Any]]:
    failure, codes = None, []
    before = [(kind, resource.getrlimit(kind)) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)]
    resource.setrlimit(resource.RLIMIT_CPU, (int(limits["cpu_seconds"]) + 1, before[0][1][1]))
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], before[1][1][1]))
    try:
        if len(source) > limits["file_bytes"]:  # its process could not write it
            raise program.CompileFailure(f"the program is larger than {limits['file_bytes']} bytes\n")
        codes = program.compile_source(source, limits["allow_top_level_return"])
    except program.CompileFailure as error:
        failure = str(error)
    for limit, values in before:
        resource.setrlimit(limit, values)
    _send(socket, b"C", {"failure": failure}, b"")
    for name in _WARM.intersection(word.decode() for word in _WORD.findall(source)):
        importlib.import_module(name)
    folder = FOLDER
    if options["isolated"]:
        quiet = linux.MS_NOSUID | linux.MS_NODEV
        size = f"size={limits['file_bytes']},nr_inodes=4096,mode=1777"
        options["mounts"] = [
            linux.Mount("tmpfs", FOLDER, quiet, size),
            linux.Mount("proc", "/proc", quiet | linux.MS_NOEXEC),
        ]
        # For its tests, which inherit it: the kernel, short of memory, ends the program and not the judge.
        _write_new("/proc/self/oom_score_adj", b"1000", os.O_WRONLY)
    else:
        folder = os.getcwd()
    program.prepare(options["packages"], options["hidden"], folder)
    gc.freeze()
    try:
        while True:
            request, facts, given = _receive(socket)
            if request != b"T":
                os._exit(0)
            if _run_test(socket, options, limits, given):
                files = facts.get("files", {})
                _become_program(options, limits, source, files)
                beside = {path.partition("/")[0].removesuffix(".py") for path in files}
                return codes, program.start_afresh(folder, _WARM.intersection(beside))
    except _Closed:
        os._exit(_JUDGE_HAS_GONE)


def _run_test(socket: int, options: dict[str, Any], limits: dict[str, Any], given: bytearray) -> bool:
    """Fork a test and report its end; True in the test's own process, its standard files in place."""
    files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    _write_all(files[0], given)
    given[:] = bytes(len(given))  # the tests to come are copies of this process
    os.lseek(files[0], 0, os.SEEK_SET)
    # Only a test whose walls all stand writes here, and closes it before the program starts: a failed set-up
    # cannot look like a verdict, nor a verdict be made to look like a failed set-up.
    ready, walls_stand = os.pipe()
    started = time.monotonic()
    child = linux.fork(_NAMESPACES if options["isolated"] else 0)
    if child == 0:
        for number, descriptor in enumerate((*files, walls_stand)):
            os.dup2(descriptor, number)
        return True
    os.close(walls_stand)
    end, seen = _watch(child, files[1], started, limits, options["isolated"])
    if not options["isolated"]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, raw, usage = os.wait4(child, 0)
    wall = time.monotonic() - started
    # Processes that were alive at the end are in no one's sum. Ended ones are in their parent's, since no program can
    # have the kernel take them away unseen, and orphans in the first process's.
    cpu = max(usage.ru_utime + usage.ru_stime, seen)
    size = os.fstat(files[1]).st_size
    facts = {
        "ready": os.read(ready, 1) == b"1",
        "end": end,
        "status": os.waitstatus_to_exitcode(raw),
        "cpu": cpu,
        "wall": wall,
        "peak": usage.ru_maxrss * 1024,
        "size": size,
    }
    # Beyond the limit only what feedback shows is of use.
    output = _parts(size, limits["output_bytes"])
    errors = _parts(os.fstat(files[2]).st_size, STDERR_BYTES)
    lengths = [sum(count for _, count in parts) for parts in (output, errors)]
    _send(socket, b"D", facts | {"output": lengths[0]}, b"", more=sum(lengths))
    # From file to socket: in this process's memory the tests to come could find it.
    for descriptor, parts in ((files[1], output), (files[2], errors)):
        for begin, count in parts:
            _send_file(socket, descriptor, begin, count)
    for descriptor in (*files, ready):
        os.close(descriptor)
    return False


def _watch(child: int, output: int, started: float, limits: dict[str, Any], isolated: bool) -> tuple[str, float]:
    """Wait for a test's end, and bring it about at a limit; says which, and the most CPU seconds that were seen."""
    descriptor = os.pidfd_open(child)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    limit = limits["wall_seconds"]
    idle, before, last, most = 0.0, -1, started, 0
    try:
        while True:
            if poll.poll(TICK_SECONDS * 1000):
                return "exit", most / _CLOCK_TICKS
            now = time.monotonic()
            ticks, memory, runnable = _usage(child, isolated, limits["memory_bytes"])
            # Only time in which no process of the test computed or stood ready to counts towards the wall limit,
            # and a look that comes late, because this process had no core, counts as an ordinary one: a busy
            # machine takes nothing from a program.
            if ticks == before and not runnable:
                idle += min(now - last, 2 * TICK_SECONDS)
            before, last, most = ticks, now, max(most, ticks)
            end = None
            if ticks / _CLOCK_TICKS > limits["cpu_seconds"]:
                end = "cpu"
            elif memory > limits["memory_bytes"]:
                end = "memory"
            elif os.fstat(output).st_size > limits["output_bytes"]:
                end = "output"
            elif idle > limit or now - started > LONGEST_STARVATION * limit:
                end = "wall"
            if end is not None:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return end, most / _CLOCK_TICKS
    finally:
        os.close(descriptor)


def _usage(child: int, isolated: bool, memory_limit: int) -> tuple[int, int, bool]:
    """A test's processes together: clock ticks of CPU time, bytes of memory, and whether one is ready to run."""
    # Every process in this namespace but its first, the zygote and this one belongs to the test.
    pids = [child]
    if isolated:
        others = (1, os.getppid(), os.getpid())
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in others]
    ticks = pages = 0
    runnable = False
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        runnable = runnable or fields[0] == b"R"
        # Times of the process and of its ended children; its resident pages.
        ticks += sum(map(int, fields[11:15]))
        pages += int(fields[21])
    memory = pages * _PAGE_BYTES
    if memory > memory_limit:  # perhaps only because shared pages are counted for each process
        memory = _proportional(pids) if len(pids) > 1 else 0
    return ticks, memory, runnable


def _proportional(pids: list[int]) -> int:
    """Memory of the processes in bytes, what they share counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:
            for line in rollup:
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def _become_program(options: dict[str, Any], limits: dict[str, Any], source: bytes, files: dict[str, str]) -> None:
    """Shed everything of the compiler: privileges, descriptors, limits, the view of its files."""
    try:
        if options["isolated"]:
            _shed_privileges(options, limits)
        else:
            os.setsid()
            _set_limits(limits, 0)
        os.closerange(_READY + 1, 1 << 20)
        _write_new(program.FILE_NAME, source)  # shown in tracebacks
        for path, contents in files.items():
            _place_file(path, contents)
        if options["filter"] is not None:
            options["filter"].install()
        os.write(_READY, b"1")
        os.close(_READY)
    except BaseException as error:  # noqa: BLE001 - a wall that cannot be built must not become a verdict
        os.write(2, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def _place_file(path: str, contents: str) -> None:
    """Put a file into the program's folder; by now this process may write nowhere else."""
    import base64

    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    _write_new(path, base64.b64decode(contents))


def _write_new(path: str, data: bytes, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> None:
    """Write a file without `open`, whose text layers cost a test's process dozens of page faults."""
    descriptor = os.open(path, flags, 0o644)
    _write_all(descriptor, data)
    os.close(descriptor)


def _shed_privileges(options: dict[str, Any], limits: dict[str, Any]) -> None:
    for mount in options["mounts"]:
        mount.make()
    os.chdir(FOLDER)
    linux.lock_privileges()
    uid = options["uid"]
    # The limit on processes counts a user's; without a user of their own, the sandbox's three count too.
    _set_limits(limits, 0 if uid else 3)
    if uid:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    linux.drop_capabilities()
    linux.set_dumpable()


def _set_limits(limits: dict[str, Any], others: int) -> None:
    seconds = int(limits["cpu_seconds"]) + 1
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, limits["processes"] + others),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
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


def _send_file(socket: int, descriptor: int, begin: int, count: int) -> None:
    while count > 0:
        try:
            sent = os.sendfile(socket, descriptor, begin, count)
        except (BrokenPipeError, ConnectionResetError):
            raise _Closed from None
        begin, count = begin + sent, count - sent


def _send(socket: int, kind: bytes, facts: dict[str, Any], data: bytes, *, more: int = 0) -> None:
    """Send a frame, or, with `more`, the beginning of one whose last bytes the caller sends."""
    head = json.dumps(facts).encode()
    _write_all(socket, HEADER.pack(kind, len(head), len(data) + more) + head + data)


def _receive(socket: int) -> tuple[bytes, dict[str, Any], bytearray]:
    kind, head, data = HEADER.unpack(_read_exactly(socket, HEADER.size))
    facts = json.loads(_read_exactly(socket, head)) if head else {}
    return kind, facts, _read_exactly(socket, data)


def _read_exactly(descriptor: int, count: int) -> bytearray:
    buffer = bytearray(count)
    with memoryview(buffer) as view:
        filled = 0
        while filled < count:
            read = os.readv(descriptor, [view[filled : filled + (1 << 20)]])
            if read == 0:
                raise _Closed
            filled += read
    return buffer


def _write_all(descriptor: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BrokenPipeError:
            raise _Closed from None
