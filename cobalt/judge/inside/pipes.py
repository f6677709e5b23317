"""Pairs of sockets in place of pipes, for programs of sandboxes that share one user; loaded only there.

The kernel limits the pipe buffers of each user: one program's pipes would make those of another sandbox's program
small, and a small pipe can change that program's verdict. A socket's buffer belongs to the socket alone.
"""

from __future__ import annotations

import os
import posix

_AF_UNIX, _SOCK_STREAM = 1, 1


def replace() -> None:
    """Make `os.pipe` and `os.pipe2` of this process and its forks return pairs of sockets, for good."""
    for name, function in (("pipe", _pipe), ("pipe2", _pipe2)):
        setattr(os, name, function)
        setattr(posix, name, function)


def _pipe() -> tuple[int, int]:
    """Create a pipe: a descriptor to read from and one to write to, neither inheritable."""
    import _socket  # only programs that make pipes need it

    # Both ends could do both. If they were shut down for one direction, an event loop would take them for closed.
    read, write = _socket.socketpair(_AF_UNIX, _SOCK_STREAM)
    return read.detach(), write.detach()


def _pipe2(flags: int, /) -> tuple[int, int]:
    """Create a pipe with the flags O_CLOEXEC and O_NONBLOCK as given."""
    ends = _pipe()
    for end in ends:
        os.set_inheritable(end, not flags & os.O_CLOEXEC)
        os.set_blocking(end, not flags & os.O_NONBLOCK)
    return ends
