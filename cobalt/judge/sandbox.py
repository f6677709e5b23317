"""One sandbox on this machine, seen from outside: start it, run programs in it one test at a time, end it.

The processes inside are described in `cobalt.judge.inside.zygote`. Reports what happened as plain facts
(`Run`); it knows no expected output and gives no verdict.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from cobalt.errors import InfrastructureError, UserError
from cobalt.judge.isolation import (
    ENVIRONMENT,
    INSIDE,
    NO_NAMESPACES,
    PACKAGES,
    START,
    bwrap_command,
    interpreter_inside,
)
from cobalt.judge.settings import JudgeSettings

End = Literal["exit", "cpu", "wall", "memory", "output"]

START_SECONDS = 60.0
# A sandbox that is silent for this many wall limits, and a minute, has broken; inside, a starved test ends at
# twenty.
SILENT_LIMITS = 25
PROGRAM_UID = 1000  # inside, where the judge runs as root
NOBODY = 65534

_HEADER = struct.Struct("!cII")


@dataclass(frozen=True, slots=True)
class Run:
    """How one execution of a program ended: by itself, or at a limit.

    Attributes:
        end: "exit", or the limit at which the judge ended it.
        status: Exit code, negative for a signal.
        cpu_seconds, wall_seconds: Of the program and all its processes; from its start to its end.
        peak_memory_bytes: The largest resident size of one of its processes.
        output_bytes: How much it wrote to standard output.
        stdout: That output, or where it passed the limit its two ends.
        stderr: The same of standard error.
    """

    end: End
    status: int
    cpu_seconds: float
    wall_seconds: float
    peak_memory_bytes: int
    output_bytes: int
    stdout: bytes
    stderr: bytes


class Sandbox:
    """A started sandbox; after an InfrastructureError or a cancelled call it is only good for `close`."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._limits = settings  # those of the opened program
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._messages = -1
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.healthy = False

    async def start(self) -> None:
        """Build the walls and warm the interpreter inside.

        Raises:
            UserError: bubblewrap is missing, or the machine allows no user namespaces.
            InfrastructureError: anything else that kept it from starting.
        """
        here, there = socket.socketpair()
        self._messages = os.memfd_create("messages")
        try:
            async with asyncio.timeout(START_SECONDS):
                if self._settings.unsafe:
                    await self._spawn_bare(there)
                else:
                    await self._spawn(there)
                there.close()  # so that the other end's death is seen as the end of the stream
                self._reader, self._writer = await asyncio.open_connection(sock=here)
                kind, _, _ = await self._receive()
        except (OSError, InfrastructureError, TimeoutError) as error:
            said = os.pread(self._messages, 2000, 0).decode("utf-8", "replace").strip()
            here.close()
            there.close()
            await self.close()
            if "namespace" in said or "uid map" in said or "Operation not permitted" in said:
                raise UserError(f"{NO_NAMESPACES} (bubblewrap says: {said.splitlines()[-1]})") from None
            raise InfrastructureError(f"a sandbox did not start: {said or error or type(error).__name__}") from error
        except BaseException:
            here.close()
            there.close()
            await self.close()
            raise
        if kind != b"R":
            await self.close()
            raise InfrastructureError("a sandbox did not start: its first word is unknown")
        self.healthy = True

    async def open_program(self, source: bytes, limits: JudgeSettings) -> str | None:
        """Hand over a program and compile it; returns what the compiler said if it is none.

        Args:
            source: The program.
            limits: Its limits; the walls stay those that the sandbox was built with.

        Raises:
            InfrastructureError: the sandbox broke.
        """
        self._limits = limits
        await self._send(b"P", _limits_of(limits), source)
        kind, facts, _ = await self._reply()
        if kind == b"C":
            return cast("str | None", facts["failure"])
        # The kernel's SIGKILL is a machine out of memory; other signals are the compiler's own end, after which
        # the zygote waits for the next program.
        if kind == b"X" and facts["status"] != -signal.SIGKILL:
            return "The program could not be compiled within the limits on time and memory."
        self.healthy = False
        raise InfrastructureError(f"a sandbox broke while it compiled: {facts}")

    async def run(self, given: bytes, files: Mapping[str, str] | None = None) -> Run:
        """Run the opened program once on one input.

        Args:
            given: Standard input.
            files: Files to put into its folder, by relative path: contents in base64.

        Raises:
            InfrastructureError: the sandbox broke.
        """
        await self._send(b"T", {"files": dict(files)} if files else None, given)
        kind, facts, data = await self._reply()
        if kind != b"D":
            self.healthy = False
            raise InfrastructureError(f"a sandbox broke during a test: {facts}")
        split = facts["output"]
        if not facts["ready"]:
            self.healthy = False
            raise InfrastructureError(f"a sandbox could not isolate a test: {data[split:][:500]!r}")
        if facts["end"] == "exit" and facts["status"] == -signal.SIGKILL and facts["cpu"] <= self._limits.cpu_seconds:
            # The first process of a PID namespace cannot be killed from within it, forged signals are denied.
            self.healthy = False  # its compiler still holds the program
            raise InfrastructureError("a test was killed from outside its sandbox; the machine may be out of memory")
        return Run(
            facts["end"],
            facts["status"],
            facts["cpu"],
            facts["wall"],
            facts["peak"],
            facts["size"],
            data[:split],
            data[split:],
        )

    async def close_program(self) -> None:
        """Forget the opened program.

        Raises:
            InfrastructureError: the sandbox broke.
        """
        await self._send(b"E", None, b"")

    async def close(self) -> None:
        """End the sandbox and everything in it; safe at any time, and more than once."""
        self.healthy = False
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None
        if self._messages >= 0:
            os.close(self._messages)
            self._messages = -1
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def _spawn(self, there: socket.socket) -> None:
        settings = self._settings
        command = bwrap_command(settings)
        as_root = os.geteuid() == 0
        options = {
            "isolated": True,
            "uid": PROGRAM_UID if as_root else 0,
            "packages": PACKAGES if settings.site_packages is not None else None,
        }
        inside = [interpreter_inside(settings), "-S", "-s", "-P", "-X", "utf8", START]
        inside += [str(there.fileno()), json.dumps(options)]
        if not as_root:
            self._process = await self._execute([*command, *inside], (there.fileno(),))
            return
        # The kernel exempts the real root from the limit on processes, so programs need another user, and
        # only we, not bubblewrap, can map two: it waits until we have.
        info_here, info_there = os.pipe()
        go_there, go_here = os.pipe()
        try:
            command += ["--info-fd", str(info_there), "--userns-block-fd", str(go_there)]
            self._process = await self._execute([*command, *inside], (there.fileno(), info_there, go_there))
            os.close(info_there)
            info_there = -1
            text = await asyncio.to_thread(_read_to_end, info_here)
            if not text.strip():
                raise InfrastructureError("bubblewrap ended at once")
            pid = json.loads(text)["child-pid"]
            mapping = f"0 0 1\n{PROGRAM_UID} {NOBODY} 1\n"
            for name in ("uid_map", "gid_map"):
                _write_file(f"/proc/{pid}/{name}", mapping)
            os.write(go_here, b"1")
        finally:
            for descriptor in (info_here, info_there, go_there, go_here):
                if descriptor >= 0:
                    os.close(descriptor)

    async def _spawn_bare(self, there: socket.socket) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="unsafe-judge-")
        packages = self._settings.site_packages
        options = {"isolated": False, "uid": 0, "packages": str(packages) if packages is not None else None}
        command = [str(self._settings.interpreter), "-S", "-s", "-P", "-X", "utf8", str(INSIDE / "start.py")]
        self._process = await self._execute(
            [*command, str(there.fileno()), json.dumps(options)], (there.fileno(),), self._folder.name
        )

    async def _execute(
        self, command: list[str], descriptors: tuple[int, ...], folder: str | None = None
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=self._messages,
            pass_fds=descriptors,
            cwd=folder or "/",
            env=ENVIRONMENT,
        )

    async def _send(self, kind: bytes, facts: dict[str, Any] | None, data: bytes) -> None:
        if self._writer is None:
            raise InfrastructureError("the sandbox is closed")
        head = json.dumps(facts).encode() if facts is not None else b""
        self._writer.write(_HEADER.pack(kind, len(head), len(data)) + head)
        if data:
            self._writer.write(data)
        try:
            await self._writer.drain()
        except (OSError, asyncio.CancelledError) as error:
            self.healthy = False
            if isinstance(error, asyncio.CancelledError):
                raise
            raise InfrastructureError(f"a sandbox broke: {error}") from error

    async def _reply(self) -> tuple[bytes, dict[str, Any], bytes]:
        healthy, self.healthy = self.healthy, False  # until the whole reply is here
        try:
            async with asyncio.timeout(SILENT_LIMITS * self._limits.wall_limit + 60.0):
                reply = await self._receive()
        except TimeoutError:
            raise InfrastructureError("a sandbox does not answer") from None
        self.healthy = healthy
        return reply

    async def _receive(self) -> tuple[bytes, dict[str, Any], bytes]:
        if self._reader is None:
            raise InfrastructureError("the sandbox is closed")
        try:
            kind, head, data = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            facts = json.loads(await self._reader.readexactly(head)) if head else {}
            return kind, facts, await self._reader.readexactly(data) if data else b""
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise InfrastructureError(f"a sandbox broke: {error}") from error


def _limits_of(settings: JudgeSettings) -> dict[str, Any]:
    """What the sandbox must know of the settings."""
    names = ("cpu_seconds", "memory_bytes", "output_bytes", "file_bytes", "processes", "open_files")
    return {name: getattr(settings, name) for name in names} | {
        "wall_seconds": settings.wall_limit,
        "allow_top_level_return": settings.allow_top_level_return,
    }


def _read_to_end(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 4096):
        parts.append(part)
        if b"}" in part:
            break
    return b"".join(parts)


def _write_file(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
