"""Resources that a test's processes use together: CPU time and memory; also whether one of them is ready to run.

The figures are read through a descriptor of /proc, which programs do not see.
"""

# ruff: noqa: PTH208 - loaded into every sandbox

import os

# The most that one socket or pipe can hold: twice the kernel's default send buffer, which a sender may exceed once, and
# the default size of a pipe. The system call filter lets nobody enlarge them.
SOCKET_BYTES = 2 * 212992
PIPE_BYTES = 65536
# More mappings than this, of all processes together, count as over the limit too: counting them takes time, during
# which the program goes on.
MOST_MAPPINGS = 20_000
MAPPING_BYTES = 320  # about what the kernel keeps for one mapping of an address space
LINK_BYTES = 64  # and in addition for each ancestor that may share its pages

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ZOMBIE, _RUNNABLE, _BLOCKED = b"Z", b"R", b"D"
# Places in /proc/PID/stat, counted from the process's state.
_STATE, _PARENT, _TIMES, _THREADS, _SIZES, _RESIDENT = 0, 1, slice(11, 15), 17, slice(20, 22), 21


def processes(proc: int, others: tuple[int, ...]) -> list[int]:
    """The ids of all processes in this namespace except `others`."""
    return [int(name) for name in os.listdir(proc) if name.isdigit() and int(name) not in others]


def measure(proc: int, pids: list[int], memory_limit: int, *, kernel: bool) -> tuple[int, int, bool]:
    """The processes together: clock ticks of CPU time, bytes of memory, and whether one is ready to run.

    Args:
        proc: A descriptor of /proc.
        pids: The processes.
        memory_limit: Bytes above which shared pages are counted once, which takes longer.
        kernel: Whether to count what the kernel holds for the processes: mappings, sockets and pipes.
    """
    ticks = memory = 0
    runnable = False
    lines: dict[int, list[bytes]] = {}
    for pid in pids:
        fields = read(proc, f"{pid}/stat").rpartition(b")")[2].split()
        if not fields:
            continue  # it has ended meanwhile
        lines[pid] = fields
        runnable = runnable or fields[_STATE] == _RUNNABLE
        # CPU times of the process and of its ended children.
        ticks += sum(map(int, fields[_TIMES]))
        threads = int(fields[_THREADS])
        # The kernel shows no memory for a process whose first thread has ended.
        memory += _of_threads(proc, pid) if fields[_STATE] == _ZOMBIE and threads > 1 else _pages(fields[_RESIDENT])
    held = _held_by_the_kernel(proc, pids, lines, memory_limit) if kernel else 0
    if memory + held > memory_limit and len(pids) > 1:
        memory = _proportional(proc, lines)
    return ticks, memory + held, runnable


def stored(folder: str) -> int:
    """Bytes that the file system mounted at `folder` holds."""
    numbers = os.statvfs(folder)
    return (numbers.f_blocks - numbers.f_bfree) * numbers.f_frsize


def read(proc: int, name: str) -> bytes:
    """A file of /proc, up to 64 KiB; empty if its process or thread has ended."""
    try:
        descriptor = os.open(name, os.O_RDONLY, dir_fd=proc)
        try:
            return os.read(descriptor, 1 << 16)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def _pages(number: bytes) -> int:
    return int(number) * _PAGE_BYTES


def _held_by_the_kernel(proc: int, pids: list[int], lines: dict[int, list[bytes]], memory_limit: int) -> int:
    """Bytes that the kernel holds for the processes' sockets, pipes and mappings; above the limit for too many."""
    objects = _held_objects(proc, pids)  # each counted once, and as the most that it can hold
    memory = SOCKET_BYTES * sum(name.startswith("socket:") for name in objects)
    memory += PIPE_BYTES * sum(name.startswith("pipe:") for name in objects)
    left = MOST_MAPPINGS
    for pid in lines:
        count = _mappings(proc, pid, left)
        left -= count
        memory += count * (MAPPING_BYTES + LINK_BYTES * _ancestors(lines, pid)) + _page_tables(proc, pid)
    return memory if left >= 0 else max(memory, memory_limit + 1)


def _names(proc: int, folder: str) -> list[str]:
    """The names in a folder of /proc; none if its process has ended meanwhile."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return []


def _of_threads(proc: int, pid: int) -> int:
    """Resident bytes of a process, as its living threads report them."""
    most = 0
    for thread in _names(proc, f"{pid}/task"):
        sizes = read(proc, f"{pid}/task/{thread}/statm").split()
        most = max(most, _pages(sizes[1]) if sizes else 0)
    return most


def _proportional(proc: int, lines: dict[int, list[bytes]]) -> int:
    """Memory of the processes in bytes, with shared pages counted once."""
    total = 0
    borrowers = _borrowers(lines)
    for pid in lines:
        if pid in borrowers:
            continue
        rollup = read(proc, f"{pid}/smaps_rollup").splitlines()
        sizes = [int(line.split()[1]) * 1024 for line in rollup if line.startswith(b"Pss:")]
        # A process whose first thread has ended reports none, nor does one that has just ended.
        total += sum(sizes) if sizes else _of_threads(proc, pid)
    return total


def _borrowers(lines: dict[int, list[bytes]]) -> set[int]:
    """Processes that run in their parent's memory; the parent waits until they have memory of their own (vfork)."""
    borrowers: dict[int, int] = {}  # by parent, because a parent can wait for one such child only
    for pid, fields in lines.items():
        parent = int(fields[_PARENT])
        above = lines.get(parent)
        if above is not None and above[_STATE] == _BLOCKED and above[_SIZES] == fields[_SIZES]:
            borrowers[parent] = pid
    return set(borrowers.values())


def _ancestors(lines: dict[int, list[bytes]], pid: int) -> int:
    """Number of a process's ancestors that are processes of the test."""
    count = 0
    while (pid := int(lines[pid][_PARENT])) in lines:
        count += 1
    return count


def _mappings(proc: int, pid: int, most: int) -> int:
    """The number of mappings of a process; some number above `most` if there are more, or if one shares /dev/zero.

    Such a mapping keeps all its pages as long as any part of it exists, and nothing shows how many these are.
    """
    count = 0
    rest = b""
    try:
        descriptor = os.open(f"{pid}/maps", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return 0
    try:
        while count <= most and (part := os.read(descriptor, 1 << 16)):
            count += part.count(b"\n")
            lines, _, rest = (rest + part).rpartition(b"\n")
            if b"/dev/zero" in lines and any(_shares_zero(line) for line in lines.split(b"\n")):
                return most + 1
    except OSError:
        pass  # the process has ended meanwhile
    finally:
        os.close(descriptor)
    return count


def _shares_zero(mapping: bytes) -> bool:
    return b"/dev/zero" in mapping and mapping.split()[1].endswith(b"s")


def _page_tables(proc: int, pid: int) -> int:
    """Bytes of a process's page tables. Pages that are only read need them, too, and are in no resident memory."""
    _, mark, rest = read(proc, f"{pid}/status").partition(b"\nVmPTE:")
    return int(rest.split(None, 1)[0]) * 1024 if mark else 0


def open_pipes(proc: int, pids: list[int]) -> int:
    """Number of pipes that the processes hold."""
    return sum(name.startswith("pipe:") for name in _held_objects(proc, pids))


def _held_objects(proc: int, pids: list[int]) -> set[str]:
    """Objects that the descriptors of the processes refer to."""
    objects = set()
    for pid in pids:
        # Each thread may have descriptors of its own.
        for thread in _names(proc, f"{pid}/task"):
            folder = f"{pid}/task/{thread}/fd"
            for name in _names(proc, folder):
                try:
                    objects.add(os.readlink(f"{folder}/{name}", dir_fd=proc))
                except OSError:
                    continue
    return objects
