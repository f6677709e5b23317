"""Linux system calls that Python 3.11 has no function for: namespaces, mounts, capabilities, seccomp.

Each function makes its call and raises OSError. What is called when is decided elsewhere (`zygote`).
"""

from __future__ import annotations

import ctypes
import os
import struct

from . import syscall_filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MNT_DETACH = 2

_MS_REMOUNT, _MS_BIND = 32, 4096
# Flags of a mount by which it must stay as restricted as the machine's; their numbers in `statvfs` are the same.
_LOCKED_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_SIGCHLD = 17

_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_TID_ADDRESS = 40
# User 0 gives no capability, a change of user keeps none, none can be raised as ambient; all three are locked.
_SECUREBITS = 0b11101011
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
_SECCOMP_USER_NOTIF_FLAG_CONTINUE = 1
_CAPABILITY_HEADER = struct.pack("Ii", 0x20080522, 0)  # version 3, this process
_NO_CAPABILITIES = bytes(24)

_libc = ctypes.CDLL(None, use_errno=True)
# Calls through this library object keep the interpreter's lock, which a new process could not take back.
_python_api = ctypes.PyDLL(None, use_errno=True)
_python_api.syscall.restype = ctypes.c_long
_own_thread: ctypes.c_void_p | None = None


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fork(namespaces: int) -> int:
    """Fork a process of one thread into new namespaces of the given kinds; returns as `os.fork` does.

    It skips what Python and libc do after a fork, making new locks for threads that do not exist, because the kernel
    would have to copy each of the sixty pages that this touches.
    """
    global _own_thread
    if _own_thread is None:  # where libc keeps the calling thread's id; the new process must find its own id there
        _own_thread = ctypes.c_void_p()
        _check(_libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(_own_thread), 0, 0, 0))
    flags = ctypes.c_ulong(namespaces | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | _SIGCHLD)
    none = ctypes.c_void_p()
    # The order of the kernel's last two arguments differs between the two architectures.
    if os.uname().machine == "x86_64":
        result: int = _python_api.syscall(56, flags, none, none, _own_thread, none)
    else:
        result = _python_api.syscall(220, flags, none, none, none, _own_thread)
    if result < 0:
        _check(result)
    return result


def mount(kind: str, target: str, flags: int, data: str) -> None:
    """Mount a file system of its own kind in this process's mount namespace."""
    _check(_libc.mount(kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()))


def make_read_only(target: str) -> None:
    """Make a mount of this process's mount namespace read-only, and keep its other flags."""
    keep = os.statvfs(target).f_flag & _LOCKED_FLAGS
    flags = ctypes.c_ulong(_MS_REMOUNT | _MS_BIND | MS_RDONLY | keep)
    _check(_libc.mount(None, target.encode(), None, flags, None))


def unshare(namespaces: int) -> None:
    """Move this process into new namespaces of the given kinds."""
    _check(_libc.unshare(ctypes.c_int(namespaces)))


def set_thread_stacks(size: int) -> None:
    """Set the stack of threads that this process and its forks start; otherwise it is the limit on the main stack."""
    attributes = ctypes.create_string_buffer(256)
    for number in (
        _libc.pthread_attr_init(attributes),
        _libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size)),
        _libc.pthread_setattr_default_np(attributes),
    ):
        if number != 0:
            raise OSError(number, os.strerror(number))


def detach_mount(target: str) -> None:
    """Take a mount out of this process's mount namespace; files that are open in it stay usable."""
    _check(_libc.umount2(target.encode(), MNT_DETACH))


def lock_privileges() -> None:
    """Keep this process and its descendants from gaining capabilities by what they execute; needs CAP_SETPCAP."""
    _check(_libc.prctl(_PR_SET_SECUREBITS, ctypes.c_ulong(_SECUREBITS), 0, 0, 0))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0))


def drop_inheritable_capabilities() -> None:
    """Keep programs that this process executes, and descendants that change their user, from its capabilities."""
    sets = ctypes.create_string_buffer(24)
    _check(_libc.capget(_CAPABILITY_HEADER, sets))
    halves = list(struct.unpack("6I", sets.raw))
    halves[2] = halves[5] = 0  # each half (low, high) is effective, permitted, inheritable
    _check(_libc.capset(_CAPABILITY_HEADER, struct.pack("6I", *halves)))


def drop_capabilities() -> None:
    """Empty every capability set of this process."""
    _check(_libc.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES))


def install_filter(program: bytes, *, listener: bool = False) -> int:
    """Put a permanent seccomp filter on this process and its descendants; call `lock_privileges` first.

    Returns the descriptor to which the filter reports calls, with `listener`; otherwise 0.
    """
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
    flags = ctypes.c_ulong(_SECCOMP_FILTER_FLAG_NEW_LISTENER if listener else 0)
    result: int = _python_api.syscall(number, ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER), flags, header)
    if result < 0:
        _check(result)
    return result


def answer_call(listener: int, allow: Callable[[], bool], error: int) -> None:
    """Let a call that a filter has reported to `listener` take place if `allow` says so, or refuse it with an error."""
    call = ctypes.create_string_buffer(80)
    if _libc.ioctl(listener, ctypes.c_ulong(syscall_filter.NOTIF_RECV), call) != 0:
        return  # the caller has ended
    (identifier,) = struct.unpack_from("Q", call)
    result = (0, _SECCOMP_USER_NOTIF_FLAG_CONTINUE) if allow() else (-error, 0)
    answer = struct.pack("QqiI", identifier, 0, *result)
    _libc.ioctl(listener, ctypes.c_ulong(syscall_filter.NOTIF_SEND), answer)
