"""Stands in for Python where Ray starts a worker: `fork_server` forks the worker. Standard library only.

    python -I -S fork_client.py SOCKET SCRIPT [ARGUMENT ...]

The process ends when the fork has begun; Ray knows a worker by what it says itself when it registers. Without a server
the process becomes an ordinary Python.
"""

import json
import os
import socket
import struct
import sys


def main(path: str, arguments: list[str]) -> None:
    """Ask for a fork with this process's environment, folder and standard streams."""
    folder = os.getcwd()  # noqa: PTH109  # pathlib takes longer to import than all the rest
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": folder}
    data = json.dumps(request).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.connect(path)
            _, user, _ = struct.unpack("3i", server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():  # the environment holds secrets
                raise PermissionError(path)
            sent = socket.send_fds(server, [data], [0, 1, 2])
            server.sendall(data[sent:])
            server.shutdown(socket.SHUT_WR)
            forked = server.recv(1)
    except OSError:
        forked = b""
    if not forked:
        os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
