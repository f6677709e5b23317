"""The second user namespace of a sandbox: the compiler and the programs cannot change the mounts that bubblewrap made.

The kernel locks mounts which a user namespace inherits: whoever takes over the compiler, which parses the program's
source in C, holds no capability that makes a read-only mount writable. The sandbox's first Python process runs
`start_again` in the outer namespace. A fork without an execution would not do, because the kernel lets a process look
at others only with capabilities over the namespace in which their memory was made.
"""

# Loaded into every sandbox.
# ruff: noqa: PTH208

from __future__ import annotations

import os
import resource
import stat
import sys

from . import linux

# Numbers of the descriptors that stay open in a sandbox: the judge's socket, /proc, and a named pipe, where standard
# input is one.
SOCKET, PROC, FIFO = 10, 11, 13
FIRST_TIME, AGAIN = "nested=0", "nested=1"
FIFO_FOLDER = "/io"  # each test's own file system covers it


def take_descriptors(socket: int) -> None:
    """Give the sandbox's own descriptors their fixed numbers, and close all that others left open."""
    if socket != SOCKET:
        os.dup2(socket, SOCKET)
    os.closerange(3, SOCKET)
    os.closerange(SOCKET + 1, 1 << 20)
    _keep("/proc", os.O_RDONLY | os.O_DIRECTORY, PROC)


def _keep(path: str, flags: int, number: int) -> None:
    """Open a path under a fixed number."""
    descriptor = os.open(path, flags)
    os.dup2(descriptor, number)
    os.close(descriptor)


def start_again(arguments: list[str]) -> None:
    """Enter the inner namespace and execute this script there, with arguments as of `zygote.serve`; does not return."""
    take_descriptors(int(arguments[1]))
    # The kernel leaves this much room for the stack when it executes the interpreter.
    limit_stack(next(int(argument.partition("=")[2]) for argument in arguments if argument.startswith("stack=")))
    if "stdin_pipe=1" in arguments:
        _make_fifo()
    _lock_devices()
    # One that shows processes alone. bubblewrap's has the kernel's settings, whose covers go when it is detached.
    quiet = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", "/proc", quiet, "subset=pid")
    _keep("/proc", os.O_RDONLY | os.O_DIRECTORY, PROC)
    for _ in range(2):
        linux.detach_mount("/proc")  # `PROC` stays usable
    try:
        _enter()
    except OSError as error:
        raise OSError(f"user namespaces cannot be nested here: {error}") from error
    options = [AGAIN if argument == FIRST_TIME else argument for argument in arguments[2:]]
    interpreter = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
    os.execv(sys.executable, [*interpreter, arguments[0], str(SOCKET), *options])


def limit_stack(size: int) -> None:
    """Limit the main thread's stack, to at most what this user may have."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))


def _lock_devices() -> None:
    """Make each device's mount read-only, so that nobody changes times that all sandboxes and the machine share.

    Programs can still write to the devices; bubblewrap's own remount would keep them from opening one.
    """
    for name in os.listdir("/dev"):
        path = f"/dev/{name}"
        if stat.S_ISCHR(os.lstat(path).st_mode):
            linux.make_read_only(path)


def _make_fifo() -> None:
    linux.mount("tmpfs", FIFO_FOLDER, linux.MS_NOSUID | linux.MS_NODEV, "size=4096,nr_inodes=4,mode=755")
    os.mkfifo(f"{FIFO_FOLDER}/stdin", 0o600)
    _keep(f"{FIFO_FOLDER}/stdin", os.O_PATH, FIFO)


def _enter() -> None:
    """Move this process into a user and a mount namespace of its own, in which every user has the same number."""
    users = {kind: _mapping(kind) for kind in ("uid", "gid")}
    read, write = os.pipe()
    this = os.getpid()
    mapper = os.fork()  # stays in the outer namespace, whose capabilities it takes to map more than one user
    if mapper == 0:
        os.close(write)
        status = 1
        try:
            if os.read(read, 1):
                for kind, lines in users.items():
                    os.write(os.open(f"{this}/{kind}_map", os.O_WRONLY, dir_fd=PROC), lines)
                status = 0
        finally:
            os._exit(status)
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    os.write(write, b"1")
    os.close(read)
    os.close(write)
    _, raw = os.waitpid(mapper, 0)
    if raw != 0:
        raise OSError("its users could not be mapped")


def _mapping(kind: str) -> bytes:
    """The lines that map each id of the outer namespace to itself."""
    descriptor = os.open(f"self/{kind}_map", os.O_RDONLY, dir_fd=PROC)
    ranges = [line.split() for line in os.read(descriptor, 4096).splitlines()]
    os.close(descriptor)
    return b"".join(b"%b %b %b\n" % (first, first, count) for first, _, count in ranges)
