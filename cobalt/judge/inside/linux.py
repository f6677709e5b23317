"""The Linux system calls that Python 3.11 has no function for: namespaces, mounts, capabilities, seccomp.

Thin calls that raise OSError; no policy but the list of system calls that programs are denied.
"""

import ctypes
import errno
import functools
import os
import platform
import signal
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8

_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_TID_ADDRESS = 40
# No capability from being user 0, none kept over a change of user, none raised as ambient; all locked.
_SECUREBITS = 0b11101011
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_HEADER = struct.pack("Ii", 0x20080522, 0)  # version 3, this process
_NO_CAPABILITIES = bytes(24)

_libc = ctypes.CDLL(None, use_errno=True)
# Calls through this one keep the interpreter's lock, which a new process could not take back.
_python_api = ctypes.PyDLL(None, use_errno=True)
_python_api.syscall.restype = ctypes.c_long


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fork(namespaces: int) -> int:
    """Fork into new namespaces of the given kinds; returns as `os.fork` does.

    Only for a process with one thread and no `at fork` hooks that matter: what Python and libc do after a fork (new
    locks for threads that are not there) touches some sixty pages, each of which the kernel would have to copy.
    """
    column, _ = _ARCHITECTURES[platform.machine()]
    flags = namespaces | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    own, none = _own_thread(), ctypes.c_void_p()
    # The kernel takes the last two arguments in another order on each of the two.
    rest = (own, none) if column == 0 else (none, own)
    result: int = _python_api.syscall(_CLONE[column], ctypes.c_ulong(flags), none, none, *rest)
    if result < 0:
        _check(result)
    return result


@functools.cache
def _own_thread() -> ctypes.c_void_p:
    """Where libc keeps the number of the calling thread: a new process has to find its own there."""
    place = ctypes.c_void_p()
    _check(_libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(place), 0, 0, 0))
    return place


class Mount:
    """A new file system to be mounted, its arguments kept ready: making them costs a new process dearly."""

    def __init__(self, kind: str, target: str, flags: int, data: str = "") -> None:
        name = ctypes.c_char_p(kind.encode())
        options = ctypes.c_char_p(data.encode())
        self._arguments = (name, ctypes.c_char_p(target.encode()), name, ctypes.c_ulong(flags), options)

    def make(self) -> None:
        """Mount it in this process's mount namespace."""
        _check(_libc.mount(*self._arguments))


def lock_privileges() -> None:
    """Make capabilities unobtainable for this process and what it executes; needs CAP_SETPCAP."""
    _check(_libc.prctl(_PR_SET_SECUREBITS, ctypes.c_ulong(_SECUREBITS), 0, 0, 0))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0))


def drop_capabilities() -> None:
    """Empty every capability set of this process."""
    _check(_libc.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES))


def set_dumpable() -> None:
    """Let this process read its own /proc entries, which a change of user forbids."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(1), 0, 0, 0))


# Seccomp: what a program never needs and a kernel exploit, or a leak from one test to the next, would. The
# order of the two columns: x86_64, aarch64; None where an architecture has no such call. The first table is denied to
# the sandbox as a whole, the second only to programs, for whom the sandbox itself makes these calls: installing a
# filter costs time by its length, and the short one is all that a test has to install.
_DENIED_TO_ALL: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_DENIED_TO_PROGRAMS: dict[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279),
    "mount": (165, 40),
    # These can forge a signal of the kernel's, by which the first process of a namespace can kill itself: that would
    # look like a machine short of memory.
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE = (56, 220)
_CLONE3 = 435
_SOCKET = (41, 198)
# Others reach beyond the network namespace (vsock), last in it for the tests to come (a port's TIME_WAIT), or are only
# attack surface.
_UNIX_SOCKETS = 1
# A program that ignores this signal has the kernel take its ended children away, and with them the CPU time they used.
_SIGACTION = (13, 134)
# A program that lowers its own limit on CPU time is killed by the kernel, which must not look like a machine
# that killed it for want of memory.
_PRLIMIT = (302, 261)
_SETRLIMIT = (160, 164)
_RLIMIT_CPU = 0
_NAMESPACE_FLAGS = 0x7E020000  # every CLONE_NEW* that clone takes

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


_Code = list[tuple[int, int, int, int]]


def seccomp_programs() -> tuple[bytes, bytes] | None:
    """The filter for the sandbox and the further one for programs; None where the calls' numbers are not known."""
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return None
    column, audit = known
    start: _Code = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the call's number
    ]
    if column == 0:  # the x32 numbers, a second door to every call
        start += [(_GREATER_EQUAL, 0, 1, 0x40000000), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    sandbox = [*start, *_refusals(_DENIED_TO_ALL, column), (_RETURN, 0, 0, _ALLOW)]
    programs = [*start, *_refusals(_DENIED_TO_PROGRAMS, column), *_refused_arguments(column)]
    return _assembled(sandbox), _assembled(programs)


def _refusals(denied: dict[str, tuple[int | None, int | None]], column: int) -> _Code:
    code: _Code = []
    for numbers in denied.values():
        number = numbers[column]
        if number is not None:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    return code


def _refused_arguments(column: int) -> _Code:
    # The arguments' low halves start at byte 16.
    return [
        # clone3's flags lie in memory, out of a filter's sight; libc falls back to clone.
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, 16),
        (_ANY_BIT, 0, 1, _NAMESPACE_FLAGS),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 8, _PRLIMIT[column]),
        (_LOAD, 0, 0, 24),
        (_EQUAL, 0, 5, _RLIMIT_CPU),
        (_LOAD, 0, 0, 32),  # both halves of the pointer to the new limit: null when it only reads
        (_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, 36),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, _SETRLIMIT[column]),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 0, 1, _RLIMIT_CPU),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, _SIGACTION[column]),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 0, 1, signal.SIGCHLD),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 3, _SOCKET[column]),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 1, 0, _UNIX_SOCKETS),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _assembled(code: _Code) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


class SeccompFilter:
    """A filter kept ready, with the memory that the kernel reads it from."""

    def __init__(self, program: bytes) -> None:
        self._program = ctypes.create_string_buffer(program, len(program))
        self._header = struct.pack("HP", len(program) // 8, ctypes.addressof(self._program))

    def install(self) -> None:
        """Put the filter on this process and its descendants, for good.

        Needs no_new_privs or the sandbox's capabilities.
        """
        _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), self._header, 0, 0))
