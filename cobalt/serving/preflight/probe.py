"""What one node is like: runs on that node, in the Python by which Ray was started there.

It reads, and writes one small file into the folder that the launcher made in the run's output. It judges nothing: see
`rules`.
"""

import asyncio
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import cobalt
from cobalt.judge.doctor import require_isolation
from cobalt.serving.preflight.report import Answer, Disk, Question
from cobalt.stage.errors import CobaltError
from cobalt.training import gpu_compiler

TOKEN_FILE = "token"

_PIECE = 64 * 2**10
"""Bytes of each file that a digest covers, besides the size; models are too large to be read whole."""

_CODE = ("cobalt/**/*.py", "cobalt/**/*.jinja", "verl/**/*.py", "verl/**/*.yaml")
_SIOCGIFADDR = 0x8915
_CONNECT_SECONDS = 5.0


class Probe:
    """An actor on one node.

    Args:
        address: The IP address by which the other nodes reach this one.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._server: socket.socket | None = None

    def clock(self) -> float:
        """The time of this node, in seconds since the epoch."""
        return time.time()

    def listen(self) -> int:
        """Accept connections at the node's address, as the processes of a training run do; returns the port."""
        self._server = socket.create_server((self._address, 0))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()
        port: int = self._server.getsockname()[1]
        return port

    def unreachable(self, others: Sequence[tuple[str, str, int]]) -> list[str]:
        """The hosts that cannot be connected to, of (host, address, port)."""
        return [host for host, address, port in others if not _connects(address, port)]

    def answer(self, question: Question, node_id: str) -> Answer:
        """Look at this node."""
        return look(question, node_id, self._address)

    @staticmethod
    def _accept(server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            connection.close()


def look(question: Question, node_id: str, address: str) -> Answer:
    """Look at the machine of this process; takes some seconds if isolation is checked."""
    gpus, driver = _gpus()
    disks = {name: _disk(Path(name)) for name in ("/tmp", "/dev/shm")}
    if question.token_folder:
        disks["output"] = _disk(Path(question.token_folder))
    interfaces = tuple(name for _, name in socket.if_nameindex())
    return Answer(
        python=platform.python_version(),
        environment=sys.prefix,
        code=code_here(),
        packages={dist.name.lower(): dist.version for dist in importlib.metadata.distributions() if dist.name},
        isolation=_isolation(question),
        gpus=gpus,
        driver=driver,
        compiler=gpu_compiler.missing() if gpus else "",
        paths={name: digest(Path(path)) for name, path in question.paths.items()},
        hub_model=_in_cache(question.hub_model) if question.hub_model else None,
        output=_share(question, node_id) if question.token_folder else None,
        disks=disks,
        interface=next((name for name in interfaces if address and _address_of(name) == address), ""),
        interfaces=interfaces,
        values={name: os.environ[name] for name in question.variables if name in os.environ},
        digests={
            name: secret_digest(os.environ[name], question.salt) for name in question.secrets if name in os.environ
        },
    )


def secret_digest(value: str, salt: str) -> str:
    """A digest that tells whether two secrets are the same, and nothing else about them."""
    return hashlib.sha256(f"{salt}\0{value}".encode()).hexdigest()


def code_here() -> tuple[str, str]:
    """The checkout that `cobalt` is imported from, and a digest of its code."""
    root = Path(cobalt.__file__).resolve().parents[1]
    files = sorted({path for pattern in _CODE for path in root.glob(pattern)})
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.relative_to(root)}\0".encode())
        total.update(path.read_bytes())
    return str(root), total.hexdigest()


def digest(path: Path) -> str:
    """A digest of a file, or of the files of a folder: names, sizes and beginnings; "" if it cannot be read."""
    total = hashlib.sha256()
    try:
        for file in _files(path):
            total.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as handle:
                total.update(handle.read(_PIECE))
    except OSError:
        return ""
    return total.hexdigest() if path.exists() else ""


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file())
    else:
        yield path


def _share(question: Question, node_id: str) -> str:
    """Read the launcher's token and write this node's; returns what went wrong, "" for nothing."""
    folder = Path(question.token_folder)
    try:
        found = (folder / TOKEN_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return "the launcher's file is not there"
    except OSError as error:
        return f"the launcher's file cannot be read ({error.strerror})"
    if found != question.token:
        return "another file lies where the launcher's should be"
    try:
        (folder / node_id).write_text(question.token, encoding="utf-8")
    except OSError as error:
        return f"it cannot be written to ({error.strerror})"
    return ""


def _isolation(question: Question) -> str | None:
    if question.judge is None:
        return None
    try:
        asyncio.run(require_isolation(question.judge))
    except CobaltError as error:
        return str(error)
    return ""


def _gpus() -> tuple[tuple[str, ...], str]:
    """Names of the GPUs and version of the driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return (), ""
    rows = [[part.strip() for part in line.rsplit(",", 1)] for line in listed.splitlines() if "," in line]
    return tuple(name for name, _ in rows), rows[0][1] if rows else ""


def _in_cache(name: str) -> bool:
    """Whether the hub's cache on this machine has a model."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _disk(path: Path) -> Disk:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return Disk(0, 0)
    return Disk(usage.free, usage.total)


def _address_of(interface: str) -> str:
    """The IPv4 address of a network interface; "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(found[20:24])


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
