"""The processes of a sandbox: a warm interpreter is forked for each program, and that fork is forked for each test.

    zygote     waits for a program; never reads its source
    compiler   forked for a program: compiles it, then for each test mounts two empty file systems and forks
    test       in a PID namespace and a session of its own: drops every privilege, becomes the program

The compiler measures and ends the test's processes from outside their namespace. They cannot see it, signal it or
reach its descriptors. All that comes back from them is an exit status and what they wrote to two files.

The sandbox protects against: reading or writing anything of the host or of another test; the network; exhausting
memory, processes, disk, descriptors or output; outliving the test; forging a result. It does not protect against:
defects of the kernel itself (a system call filter leaves fewer of them in reach); side channels through shared
hardware; reading the time and the kind of machine. The limit on the memory of several processes together is enforced
by a measurement every 50 ms, and by the kernel where the sandbox has a memory cgroup (`cobalt.judge.sandbox.cgroups`).

A frame on the socket, in both directions, is a letter and two lengths, then an object and bytes. Objects arrive in
`marshal`'s format, which needs no module, and are sent as JSON.
    received   P limits, source | T input | E (end of the program)
    sent       R ready | C {"failure": text or ""} | D facts, output | X {"status": n} (the compiler died)
"""

# Every module loaded here, with every page of its memory, is copied for each test: no pathlib, and no other module that
# programs do not use.
# ruff: noqa: PTH109, SIM105

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

from . import linux, nesting, program, syscall_filter, usage
from .nesting import PROC as _PROC
from .nesting import SOCKET as _SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from collections.abc import Generator
    from typing import Any

    _Feed = Generator[None, None, None]

HEADER = Struct("!cII")
TICK_SECONDS = 0.05
LONGEST_STARVATION = 20  # a test ends after this many wall limits, however busy the machine is
STDERR_BYTES = 65536
_THREAD_STACK_BYTES = 8 << 20
PENDING_SIGNALS = 256  # queued signals and timers of a test

FOLDER = "/tmp"  # the program's own folder, in which it starts
STREAMS = "/io"  # the folder of its standard streams; /dev/stdin, /dev/stdout and /dev/stderr link to them
MODULES = f"{FOLDER}/inside"  # the folder of these modules, which the file systems of tests cover
# Descriptors: a test's streams, the counter by which a test reports that it is ready, and the sandbox's own.
_INPUT, _OUTPUT, _ERRORS, _READY, _OOM, _LISTENER = 0, 1, 2, 3, 12, 14
_FIFO = f"self/fd/{nesting.FIFO}"  # below /proc
_JUDGE_HAS_GONE = 3  # exit status of a process that finds the socket closed
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# Scores for the kernel's out-of-memory killer. The program's is higher than the compiler's by as much as all memory
# counts, so that the program is killed first, however large the compiler is.
_PROGRAM_FIRST, _COMPILER_NEXT = b"1000", b"0"
_EMFILE = 24
_SIGKILL, _SIGCONT, _SIGSTOP = 9, 18, 19  # as in `signal`, which loads half a dozen modules

# Modules that are imported once, so that each test's own import costs nothing. None of them imports `threading`, which
# would have to be notified of forks.
_WARM = (
    "array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string",
    "typing",
)  # fmt: skip


def serve(arguments: list[str]) -> tuple[list[types.CodeType], dict[str, Any]]:
    """Serve programs until the judge closes the socket.

    Returns only in a test's process, with the code to execute there and the namespace to execute it in.

    Args:
        arguments: The script's arguments. The second is the socket's descriptor, the others are options as
            `name=value`: isolated (1 or 0), uid (the user that programs run as; 0: sandboxes share one), pipes (how
            many a test may have there), kernel (1: count what the kernel holds for a program), packages (a folder, or
            empty), paper_guard (1: apply it), stdin_pipe (1: standard input may be a pipe), stack (bytes).
    """
    texts = dict(argument.split("=", 1) for argument in arguments[2:])
    options: dict[str, Any] = {name: int(text) for name, text in texts.items() if name != "packages"}
    options |= {"packages": texts["packages"], "listener": 0}
    if hasattr(sys, "set_int_max_str_digits"):  # numbers of any length, as in the graders, also in source texts
        sys.set_int_max_str_digits(0)
    if not options["isolated"]:
        nesting.take_descriptors(int(arguments[1]))
        nesting.limit_stack(options["stack"])
    if options["paper_guard"]:
        program.prepare_paper_guard()
    for name in _WARM:
        __import__(name)
    # Where crashes are handed to a program of the machine, the kernel does so whatever the limit, unless it is 1. The
    # filter keeps it so.
    core = 1 if resource.getrlimit(resource.RLIMIT_CORE)[1] else 0
    resource.setrlimit(resource.RLIMIT_CORE, (core, core))
    _provide_exits()
    linux.set_thread_stacks(_THREAD_STACK_BYTES)
    if options["isolated"]:
        options["listener"] = _close_the_sandbox(pipes=bool(options["uid"]))
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
            return _serve_program(options)
        _, raw = os.waitpid(compiler, 0)
        status = os.waitstatus_to_exitcode(raw)
        if status == _JUDGE_HAS_GONE:
            os._exit(0)
        if status != 0:
            if options["isolated"]:
                _end_the_rest()
            _send(b"X", {"status": status}, b"")


def _end_the_rest() -> None:
    """End a test whose compiler has died: every process of the sandbox except its first and this one."""
    try:
        os.kill(-1, _SIGKILL)
    except ProcessLookupError:
        pass  # no process is left


def _close_the_sandbox(*, pipes: bool) -> int:
    """Give up privileges that only the start needed, for all later processes, and filter their system calls.

    Returns the descriptor to which the filter reports pipes; 0 with `pipes`, where they need not be counted.
    """
    try:
        os.setgroups([])
    except OSError:
        pass  # not allowed for this user, whose groups do not matter inside
    linux.lock_privileges()
    linux.drop_inheritable_capabilities()
    code = syscall_filter.filter_program(os.uname().machine, pipes=pipes)
    listener = linux.install_filter(code, listener=not pipes)
    if not listener:
        return 0
    os.dup2(listener, _LISTENER)
    os.close(listener)
    return _LISTENER


def _provide_exits() -> None:
    # Python's `site` module makes these; programs run without it, as under `python -S`.
    import builtins
    from _sitebuiltins import Quitter

    for name in ("exit", "quit"):
        setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))


def _serve_program(options: dict[str, Any]) -> tuple[list[types.CodeType], dict[str, Any]]:
    kind, limits, received = _receive()
    while kind != b"P":  # a frame left over from a program whose compiler died
        kind, limits, received = _receive()
    source = bytes(received)
    del received
    failure, codes = _compile(limits, source)
    _send(b"C", {"failure": failure, "of_the_suite": limits["wrong_suite"]}, b"")
    if limits["imports"]:
        program.give_names(limits["imports"])
    os.umask(0)  # each test sets its own mask
    _set_inherited_limits(limits)
    score = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=_PROC)
    os.dup2(score, _OOM)
    os.close(score)
    os.write(_OOM, _COMPILER_NEXT)
    folder = FOLDER if options["isolated"] else os.getcwd()
    program.prepare(options["packages"], folder)
    # The files opened for a test then get the numbers of its streams, so that the test need not move them.
    os.closerange(_INPUT, _READY)
    gc.freeze()
    while True:
        request, _, stdin = _receive()
        if request != b"T":
            os._exit(0)
        if _run_test(options, limits, stdin):
            _become_program(options, limits, source)
            return codes, program.start_afresh(folder, limits["module"])


def _compile(limits: dict[str, Any], source: bytes) -> tuple[str, list[types.CodeType]]:
    """Compile within the limits; returns the compiler's message, "" if the source compiles, and the code.

    Adds to `limits` the warnings to print, and whether what did not compile is the suite's own code.
    """
    limits["warnings"], limits["wrong_suite"] = b"", 0
    if len(source) > limits["file_bytes"]:  # its process could not write the source to its folder
        return f"the program is larger than {limits['file_bytes']} bytes\n", []
    unlimited = [(kind, resource.getrlimit(kind)) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS)]
    resource.setrlimit(resource.RLIMIT_CPU, (_cpu_limit(limits), unlimited[0][1][1]))
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], unlimited[1][1][1]))
    failure: BaseException | None = None
    codes: list[types.CodeType] = []
    try:
        limits["wrong_suite"] = 1
        before = program.compile_text(limits["before"], "prelude.py")
        limits["wrong_suite"] = 0
        codes, warnings = program.compile_source(source, limits)
        limits["warnings"] = warnings[: min(STDERR_BYTES, limits["file_bytes"]) // 2]
        codes[:0] = before
    except program.FAILURES as error:
        failure = error
    for limit, values in unlimited:
        resource.setrlimit(limit, values)
    return ("" if failure is None else program.failure_text(failure, source)), codes


def _open_streams(options: dict[str, Any], limits: dict[str, Any], stdin: bytearray) -> None:
    """Open a test's standard input, output and error, in file systems made for this test alone."""
    if not options["isolated"]:
        for name in ("stdin", "stdout", "stderr"):
            os.memfd_create(name, 0)
        _write_all(_INPUT, stdin)
        os.lseek(_INPUT, 0, os.SEEK_SET)
        return
    quiet = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    # Each file fills whole pages; the file system itself needs one page.
    size = len(stdin) + 2 * limits["file_bytes"] + 4 * resource.getpagesize()
    linux.mount("tmpfs", FOLDER, quiet, f"size={limits['file_bytes']},nr_inodes=4096,mode=1777")
    linux.mount("tmpfs", STREAMS, quiet, f"size={size},nr_inodes=8,mode=755")
    # Each `os.open` returns the lowest free number.
    new = os.O_CREAT | os.O_EXCL | os.O_RDWR
    _write_all(os.open(f"{STREAMS}/stdin", new, 0o444), stdin)
    os.close(_INPUT)
    if limits["stdin_pipe"]:
        # An open pipe of its own for each test; `/dev/stdin` still names the file.
        os.open(_FIFO, os.O_RDONLY | os.O_NONBLOCK, dir_fd=_PROC)
        os.set_blocking(_INPUT, True)
    else:
        os.open(f"{STREAMS}/stdin", os.O_RDONLY)
    os.set_inheritable(_INPUT, True)
    os.set_inheritable(os.open(f"{STREAMS}/stdout", new, 0o666), True)
    os.set_inheritable(os.open(f"{STREAMS}/stderr", new, 0o666), True)


def _open_feed(options: dict[str, Any], limits: dict[str, Any]) -> tuple[int, _Feed | None]:
    """A pipe as a test's standard input, if it is one: the end to write to, and `_feed`, if there is more to write.

    Call it when the streams are open.
    """
    if not limits["stdin_pipe"]:
        return -1, None
    if options["isolated"]:
        source = os.open(f"{STREAMS}/stdin", os.O_RDONLY)
        pipe = os.open(_FIFO, os.O_WRONLY | os.O_NONBLOCK, dir_fd=_PROC)
    else:
        source = os.dup(_INPUT)
        read, pipe = os.pipe()
        os.dup2(read, _INPUT)
        os.close(read)
        os.set_blocking(pipe, False)
    feed = _feed(source, pipe)
    return (-1, None) if next(feed, True) else (pipe, feed)


def _feed(source: int, pipe: int) -> _Feed:
    """Write a file into a pipe, at each step as much as it takes. Both are closed at the end: a reader sees it."""
    sent = 0
    try:
        while part := os.pread(source, 1 << 16, sent):
            try:
                sent += os.write(pipe, part)
            except BlockingIOError:
                yield
    except BrokenPipeError:
        pass  # nobody reads
    finally:
        os.close(pipe)
        os.close(source)


def _run_test(options: dict[str, Any], limits: dict[str, Any], stdin: bytearray) -> bool:
    """Fork a test and report its end. Returns True in the test's own process, where the standard streams are set up."""
    _open_streams(options, limits, stdin)
    limits = limits | {"given": len(stdin)}
    _forget(stdin)
    # A test counts this up once its isolation is complete, and closes it before the program starts. So a failed set-up
    # cannot look like a verdict, and a program cannot make a verdict look like a failed set-up.
    counter = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    if counter != _READY:
        os.dup2(counter, _READY, inheritable=False)
        os.close(counter)
    pipe, feed = _open_feed(options, limits)
    os.write(_OOM, _PROGRAM_FIRST)
    started = time.monotonic()
    child = linux.fork(linux.CLONE_NEWPID if options["isolated"] else 0)
    if child == 0:
        return True
    os.write(_OOM, _COMPILER_NEXT)
    end, seen, idle, memory = _watch(child, started, limits, options, pipe, feed)
    if feed is not None:
        feed.close()
    if not options["isolated"]:
        try:
            os.killpg(child, _SIGKILL)
        except ProcessLookupError:
            pass
    own_limit = int(resource.prlimit(child, resource.RLIMIT_CPU)[1] < _cpu_limit(limits))
    _, raw, used = os.wait4(child, 0)
    wall = time.monotonic() - started
    facts = {
        "ready": _ready(),
        "end": end,
        "status": os.waitstatus_to_exitcode(raw),
        # A program that lowers its own limit ends by the same signal as one that is killed because memory is short.
        "own_limit": own_limit,
        # The kernel's sum (`used`) lacks processes that were alive at the end. Ended processes are in their parent's
        # sum, because the filter keeps programs from having them discarded; orphans are in the first process's sum.
        "cpu_seconds": max(used.ru_utime + used.ru_stime, seen),
        "wall_seconds": wall,
        "idle_seconds": idle,
        "peak_memory_bytes": max(memory, used.ru_maxrss * 1024),
        "output_bytes": os.fstat(_OUTPUT).st_size,
    }
    _report(facts, limits["output_bytes"])
    os.closerange(_INPUT, _READY + 1)
    if options["isolated"]:
        for folder in (FOLDER, STREAMS):
            linux.detach_mount(folder)  # it is gone when its last descriptor is closed
    return False


def _report(facts: dict[str, Any], output_bytes: int) -> None:
    """Send the facts of a test, its output and its errors; of an output above the limit what feedback shows of it."""
    output = _parts(_OUTPUT, output_bytes)
    parts = output + _parts(_ERRORS, STDERR_BYTES)
    split = sum(count for _, _, count in output)
    _send(b"D", facts | {"output": split}, b"", more=sum(count for _, _, count in parts))
    for part in parts:
        _send_file(*part)


def _ready() -> int:
    """1 if the test has reported that its isolation is complete, else 0."""
    try:
        return os.eventfd_read(_READY)
    except BlockingIOError:
        return 0


def _forget(data: bytearray) -> None:
    """Overwrite and free a test's input, because later tests are copies of this process."""
    zeros = bytes(1 << 16)
    for begin in range(0, len(data), len(zeros)):
        count = min(len(zeros), len(data) - begin)
        data[begin : begin + count] = zeros[:count]
    data.clear()


def _watch(
    child: int, started: float, limits: dict[str, Any], options: dict[str, Any], pipe: int, feed: _Feed | None
) -> tuple[str, float, float, int]:
    """Wait for a test's end, and kill the test at a limit.

    Returns how it ended, the most CPU seconds seen, the seconds in which none of its processes computed or was ready to
    compute, and the most bytes of memory seen.
    """
    descriptor = os.pidfd_open(child)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if feed is not None:
        poll.register(pipe, select.POLLOUT)
    options["made"] = 0
    if options["listener"]:
        poll.register(options["listener"], select.POLLIN)
    limit = limits["wall_limit"]
    idle, before, last, most, peak, looking = 0.0, -1, started, 0, 0, 0.0
    end = "exit"
    while True:
        events = dict(poll.poll(TICK_SECONDS * 1000))
        if descriptor in events:
            break
        if feed is not None and pipe in events and next(feed, True):
            poll.unregister(pipe)
        if options["listener"] in events:
            linux.answer_call(options["listener"], lambda: _may_make_pipe(options), _EMFILE)
        now, computed = time.monotonic(), time.process_time()
        if events and now - last < TICK_SECONDS:
            continue
        ticks, memory, runnable = _usage(child, limits, options)
        # Only time in which no process of the test computed or was ready to compute counts towards the wall limit.
        # If this process had no core and measures late, the interval counts as an ordinary one, so that a busy
        # machine takes no time from a program.
        if ticks == before and not runnable:
            idle += min(now - last, 2 * TICK_SECONDS + looking)
        looking = time.process_time() - computed  # the measurement takes longer because of what the program holds
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


def _may_make_pipe(options: dict[str, Any]) -> bool:
    """Whether a test whose user is that of other programs may make another pipe; if so, it counts as made."""
    if options["made"] >= options["pipes"]:  # no more are open than were made
        options["made"] = usage.open_pipes(_PROC, usage.processes(_PROC, (1, os.getppid(), os.getpid())))
    may = options["made"] < options["pipes"]
    options["made"] += may
    return bool(may)


def _usage(child: int, limits: dict[str, Any], options: dict[str, Any]) -> tuple[int, int, bool]:
    """A test's processes and files together; see `usage.measure`."""
    most = limits["memory_bytes"]
    if not options["isolated"]:
        return usage.measure(_PROC, [child], most, kernel=False)
    # Every process in this namespace belongs to the test, except the first one, the zygote and this process.
    others = (1, os.getppid(), os.getpid())
    stored = usage.stored(FOLDER) + max(0, usage.stored(STREAMS) - limits["given"])
    pids = usage.processes(_PROC, others)
    ticks, memory, runnable = usage.measure(_PROC, pids, most - stored, kernel=options["kernel"])
    if options["kernel"] and len(pids) > 1 and not set(pids).issuperset(usage.processes(_PROC, others)):
        # A process that has started meanwhile may hold the memory of one that ended uncounted. The kernel gives the
        # signal to all processes at once, so that none starts another after it. The zygote goes on at once: it ends the
        # test if this process dies meanwhile.
        os.kill(-1, _SIGSTOP)
        try:
            os.kill(os.getppid(), _SIGCONT)
            memory = usage.measure(_PROC, usage.processes(_PROC, others), most - stored, kernel=True)[1]
        finally:
            os.kill(-1, _SIGCONT)
    return ticks, memory + stored, runnable


def _become_program(options: dict[str, Any], limits: dict[str, Any], source: bytes) -> None:
    """Give up everything of the compiler: its session, privileges, descriptors and limits."""
    try:
        os.setsid()  # this also makes a process group and an autogroup of its own
        os.umask(0o022)
        uid = options["uid"]
        if options["isolated"]:
            os.chdir(FOLDER)
            # The limit on processes is for a user: if programs have no user of their own, the sandbox's three count.
            _set_limits(limits, 0 if uid else 3)
            if uid:  # the change of user drops the capabilities
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            else:
                linux.drop_capabilities()
        else:
            _set_limits(limits, 0)
        os.closerange(_READY + 1, 1 << 20)
        # For tracebacks. Without `open`, whose text layers cost a test's process dozens of page faults.
        own = os.open(program.FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        _write_all(own, source)
        os.close(own)
        _write_all(_ERRORS, limits["warnings"])
        os.eventfd_write(_READY, 1)
        os.close(_READY)
    except BaseException as error:  # noqa: BLE001 - a failure to isolate must not become a verdict
        os.write(_ERRORS, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def _cpu_limit(limits: dict[str, Any]) -> int:
    """The kernel's limit on CPU seconds of a process, in case the compiler ends it late."""
    return int(limits["cpu_seconds"]) + 1


def _set_limits(limits: dict[str, Any], others: int) -> None:
    """Set those limits of a test that its compiler could not work under."""
    _limit(resource.RLIMIT_CPU, _cpu_limit(limits))
    _limit(resource.RLIMIT_AS, limits["memory_bytes"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _limit(resource.RLIMIT_NPROC, limits["processes"] + others)


def _set_inherited_limits(limits: dict[str, Any]) -> None:
    """Set the limits that a compiler has and that its tests inherit."""
    _limit(resource.RLIMIT_NOFILE, limits["open_files"])
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)
    _limit(resource.RLIMIT_SIGPENDING, PENDING_SIGNALS)


def _limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, value))


def _parts(file: int, limit: int) -> list[tuple[int, int, int]]:
    """The parts of a file to send, as (file, begin, length): the whole, or the two ends of one above the limit."""
    size = os.fstat(file).st_size
    end = min(4096, limit)
    return [(file, 0, size)] if size <= limit else [(file, 0, end), (file, size - end, end)]


def _send_file(file: int, begin: int, count: int) -> None:
    buffer = bytearray(min(count, 1 << 16))
    while count > 0:
        with memoryview(buffer)[: min(count, len(buffer))] as part:
            read = os.preadv(file, [part], begin)
            _write_all(_SOCKET, part[:read])
        begin, count = begin + read, count - read
    buffer[:] = bytes(len(buffer))  # later tests are copies of this process


def _send(kind: bytes, facts: dict[str, Any], data: bytes, *, more: int = 0) -> None:
    """Send a frame; with `more`, send its beginning, and the caller sends that many more bytes."""
    texts = (f"{_quoted(name)}: {_quoted(v) if isinstance(v, str) else repr(v)}" for name, v in facts.items())
    head = "{" + ", ".join(texts) + "}"
    _write_all(_SOCKET, HEADER.pack(kind, len(head), len(data) + more) + head.encode() + data)


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
                os._exit(_JUDGE_HAS_GONE)
            filled += read
    return buffer


def _write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except (BrokenPipeError, ConnectionResetError):
            os._exit(_JUDGE_HAS_GONE)
