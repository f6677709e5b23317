"""The Linux system calls that Python 3.11 has no function for: namespaces, mounts, capabilities, seccomp.

Thin calls that raise OSError; no policy.
"""

import ctypes
import os
import struct

CLONE_NEWPID = 0x20000000

MS_NOSUID, MS_NODEV = 2, 4
MNT_DETACH = 2

_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_SIGCHLD = 17

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
_own_thread: ctypes.c_void_p | None = None


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fork(namespaces: int) -> int:
    """Fork into new namespaces of the given kinds; returns as `os.fork` does.

    Only for a process with one thread and no `at fork` hooks that matter: what Python and libc do after a fork (new
    locks for threads that are not there) touches some sixty pages, each of which the kernel would have to copy.

    Raises:
        OSError: the kernel refused, or this architecture's number of the call is not known here.
    """
    global _own_thread
    if _own_thread is None:  # where libc keeps the calling thread's number: a new process has to find its own there
        _own_thread = ctypes.c_void_p()
        _check(_libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(_own_thread), 0, 0, 0))
    flags = ctypes.c_ulong(namespaces | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | _SIGCHLD)
    none = ctypes.c_void_p()
    # The kernel takes the last two arguments in another order on each of the two.
    match os.uname().machine:
        case "x86_64":
            result: int = _python_api.syscall(56, flags, none, none, _own_thread, none)
        case "aarch64":
            result = _python_api.syscall(220, flags, none, none, none, _own_thread)
        case machine:
            raise OSError(f"no number of the system call `clone` for {machine}")
    if result < 0:
        _check(result)
    return result


class Mount:
    """A new file system to be mounted, its arguments kept ready: making them costs a new process dearly."""

    def __init__(self, kind: str, target: str, flags: int, data: str = "") -> None:
        name = ctypes.c_char_p(kind.encode())
        options = ctypes.c_char_p(data.encode())
        self._target = ctypes.c_char_p(target.encode())
        self._arguments = (name, self._target, name, ctypes.c_ulong(flags), options)

    def make(self) -> None:
        """Mount it in this process's mount namespace."""
        _check(_libc.mount(*self._arguments))

    def detach(self) -> None:
        """Take it out of the namespace; it goes when the last descriptor of it is closed."""
        _check(_libc.umount2(self._target, MNT_DETACH))


def detach_mount(target: str) -> None:
    """Take a mount out of this process's mount namespace; what is open in it stays usable."""
    _check(_libc.umount2(target.encode(), MNT_DETACH))


def lock_privileges() -> None:
    """Make capabilities unobtainable for this process and its descendants by what they execute; needs CAP_SETPCAP."""
    _check(_libc.prctl(_PR_SET_SECUREBITS, ctypes.c_ulong(_SECUREBITS), 0, 0, 0))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0))


def drop_inheritable_capabilities() -> None:
    """Keep capabilities of this process from what it executes, and from descendants that change their user."""
    sets = ctypes.create_string_buffer(24)
    _check(_libc.capget(_CAPABILITY_HEADER, sets))
    kept = list(struct.unpack("6I", sets.raw))
    kept[2] = kept[5] = 0  # effective, permitted and inheritable, by the low and the high half
    _check(_libc.capset(_CAPABILITY_HEADER, struct.pack("6I", *kept)))


def drop_capabilities() -> None:
    """Empty every capability set of this process."""
    _check(_libc.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES))


def install_filter(program: bytes) -> None:
    """Put a seccomp filter on this process and its descendants, for good; needs `lock_privileges` before it."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, 0, 0))
