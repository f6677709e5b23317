"""One sandbox on this machine, seen from outside: start it, run programs in it one test at a time, end it.

`cobalt.judge.inside.zygote` describes the processes inside. A sandbox knows no expected output and gives no verdict.
"""

import asyncio
import contextlib
import json
import marshal
import os
import select
import signal
import socket
import struct
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from cobalt.judge.inside.nesting import AGAIN, FIRST_TIME
from cobalt.judge.sandbox import isolation
from cobalt.judge.sandbox.cgroups import CgroupParent, SandboxCgroup
from cobalt.judge.sandbox.users import PROGRAM_UID, map_users, pipes_of_a_test, spare_users
from cobalt.judge.settings import JudgeSettings
from cobalt.stage.errors import InfrastructureError, UserError, last_line

End = Literal["exit", "cpu", "wall", "memory", "output"]

START_SECONDS = 60.0
# A sandbox that is silent for so many wall limits and a minute is broken: a starved test ends after twenty.
SILENT_LIMITS = 25
_LARGE_INPUT = 4 << 20
_ENDING_SECONDS = 5.0

_HEADER = struct.Struct("!cII")
_LIMITS = ("cpu_seconds", "wall_limit", "memory_bytes", "output_bytes", "file_bytes", "processes", "open_files")
_MARSHAL_VERSION = 2  # every Python that programs may run under reads this version


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a program, which ended by itself or at a limit.

    Attributes:
        end: "exit", or the limit at which the judge ended the program.
        status: Exit code, negative for a signal.
        cpu_seconds: CPU time of the program and all its processes.
        wall_seconds: Time from the program's start to its end.
        peak_memory_bytes: The most that was seen: the resident size of the largest process, or, if larger, that of all
            processes and files together, measured every 50 ms.
        output_bytes: Bytes that the program wrote to standard output.
        stdout: Standard output, or its two ends if it exceeded the limit.
        stderr: Standard error, or its two ends if it exceeded its limit.
        idle_seconds: Time in which no process of the program was computing or ready to compute.
    """

    end: End
    status: int
    cpu_seconds: float
    wall_seconds: float
    peak_memory_bytes: int
    output_bytes: int
    stdout: bytes
    stderr: bytes
    idle_seconds: float = 0.0


class Sandbox:
    """One sandbox; after an InfrastructureError or a cancelled call only `close` may be called.

    Args:
        settings: The settings that isolation is built by; each program brings its own limits.
        parent: Parent of the sandbox's cgroup. None: memory is added up inside the sandbox.
    """

    def __init__(self, settings: JudgeSettings, parent: CgroupParent | None = None) -> None:
        self._settings = settings
        self._parent = parent
        self._cgroup: SandboxCgroup | None = None
        self._kills = 0  # processes that the kernel has ended in the cgroup
        self._first = -1  # a descriptor of the first process inside
        self._limits = settings  # the limits of the opened program
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._messages = -1  # a file in memory with what bubblewrap says
        self._held = contextlib.ExitStack()  # descriptors, the cgroup, and the folder of a sandbox without isolation
        self._closing = asyncio.Lock()
        self.healthy = False

    async def start(self) -> None:
        """Build the isolation and start the interpreter inside.

        Raises:
            UserError: bubblewrap is missing, or the machine allows no user namespaces.
            InfrastructureError: the sandbox did not start for any other reason.
        """
        ours, theirs = socket.socketpair()
        self._messages = os.memfd_create("messages")
        self._held.callback(os.close, self._messages)
        try:
            if self._parent is not None:
                self._cgroup = SandboxCgroup(self._parent)
                self._kills = 0
                self._held.callback(self._cgroup.remove)
            async with asyncio.timeout(START_SECONDS):
                with theirs:  # closed after that, so that the other end's death is seen as the end of the stream
                    await (self._spawn_bare(theirs) if self._settings.unsafe else self._spawn(theirs))
                self._reader, self._writer = await asyncio.open_connection(sock=ours)
                kind, _, _ = await self._reply()
            if kind != b"R":
                raise InfrastructureError(f"its first frame is {kind!r}, not b'R'")
        except BaseException as error:
            said = os.pread(self._messages, 2000, 0).decode("utf-8", "replace").strip()
            ours.close()
            theirs.close()
            await self.close()
            if not isinstance(error, OSError | InfrastructureError):
                raise
            if "namespace" in said or "uid map" in said or "Operation not permitted" in said:
                raise UserError(f"{isolation.NO_NAMESPACES} (bubblewrap says: {last_line(said)})") from None
            raise InfrastructureError(f"a sandbox did not start: {said or error or type(error).__name__}") from error
        self.healthy = True

    @contextlib.asynccontextmanager
    async def program(self, source: bytes, limits: JudgeSettings, around: dict[str, Any]) -> AsyncIterator[str]:
        """Send a program, with its limits and what goes around it (`cobalt.judge.prelude`).

        Yields the compiler's message; "" if the program compiles.

        Raises:
            UserError: the code that the suite puts before the program does not compile.
            InfrastructureError: the sandbox broke.
        """
        self._limits = limits
        try:
            if self._cgroup is not None:
                self._cgroup.raise_to(limits.memory_bytes, limits.processes)
            yield await self._open_program(source, {name: getattr(limits, name) for name in _LIMITS} | around)
            if self.healthy:
                await self._send(b"E")
        except UserError:
            raise
        except BaseException:
            self.healthy = False  # its compiler still holds the program
            raise

    async def _open_program(self, source: bytes, facts: dict[str, Any]) -> str:
        await self._send(b"P", facts, source)
        kind, facts, _ = await self._reply()
        if kind == b"C":
            if self._cgroup is not None:  # nothing of the previous program is left that exceeds the lower limits
                self._cgroup.limit(self._limits.memory_bytes, self._limits.processes)
            if facts["of_the_suite"]:
                await self._send(b"E")
                raise UserError(f"the prelude of a test suite does not compile: {last_line(facts['failure'])}")
            return str(facts["failure"])
        # SIGKILL means that the machine is out of memory, unless the sandbox reached the limit of its own cgroup.
        # Other signals mean that the compiler ended by itself. In each case the zygote waits for the next program.
        if kind == b"X" and (self._ran_out_of_memory() or facts["status"] != -signal.SIGKILL):
            return "The program could not be compiled within the limits on time and memory."
        raise InfrastructureError(f"a sandbox broke while it compiled: {facts}")

    async def run(self, stdin: bytes) -> Execution:
        """Run the program once on one input, within `program`.

        Raises:
            InfrastructureError: the sandbox broke.
        """
        if self._cgroup is not None and len(stdin) > _LARGE_INPUT:
            # The input is in memory three times: in transfer, in the compiler and as a file.
            self._cgroup.raise_to(self._limits.memory_bytes + 3 * len(stdin), self._limits.processes)
        try:
            await self._send(b"T", None, stdin)
            kind, facts, data = await self._reply()
            if kind != b"D":
                raise InfrastructureError(f"a sandbox broke during a test: {facts}")
        except InfrastructureError:
            self.healthy = False
            if self._ran_out_of_memory():  # the kernel killed the sandbox's own processes
                return Execution("memory", -signal.SIGKILL, 0.0, 0.0, self._limits.memory_bytes, 0, b"", b"")
            raise
        ran_out_of_memory = self._ran_out_of_memory()
        ready, own_limit, split = (facts.pop(name) for name in ("ready", "own_limit", "output"))
        run = Execution(**facts, stdout=data[:split], stderr=data[split:])
        if ready != 1:
            raise InfrastructureError(f"a sandbox could not isolate a test: {run.stderr[:500]!r}")
        if ran_out_of_memory:
            # This comes first: a program that waits for a process killed by the kernel reaches another limit later.
            return replace(run, end="memory")
        killed = run.end == "exit" and run.status == -signal.SIGKILL
        if killed and not own_limit and run.cpu_seconds <= self._limits.cpu_seconds:
            # The first process of a PID namespace cannot be killed from inside it, and forged signals are refused.
            raise InfrastructureError("a test was killed from outside its sandbox; the machine may be out of memory")
        return run

    def _ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process at the limit of this sandbox's cgroup since the last call."""
        if self._cgroup is None:
            return False
        before, self._kills = self._kills, self._cgroup.kills()
        return self._kills > before

    async def close(self) -> None:
        """End the sandbox and everything in it; safe at any time, more than once, and from several tasks."""
        self.healthy = False
        async with self._closing:
            await self._end()

    async def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # bubblewrap's inner process too
            await self._process.wait()
            self._process = None
        if self._first >= 0:
            # When the first process inside has ended, every other process inside has ended too.
            end = select.poll()
            end.register(self._first, select.POLLIN)
            await asyncio.to_thread(end.poll, 1000 * _ENDING_SECONDS)
            self._first = -1
        self._held.close()
        self._cgroup = None

    async def _spawn(self, theirs: socket.socket) -> None:
        settings = self._settings
        info_ours, info_theirs = os.pipe()
        go_theirs, go_ours = os.pipe()
        users = spare_users()
        # bubblewrap cannot map two users: it waits until this process has mapped them.
        command = [*isolation.bwrap_command(settings), "--info-fd", str(info_theirs)]
        command += ["--userns-block-fd" if users else "--block-fd", str(go_theirs)]
        command += self._start_command(isolation.interpreter_inside(settings), isolation.START, theirs)
        packages = isolation.PACKAGES if settings.site_packages else ""
        command += [f"uid={PROGRAM_UID if users else 0}", f"packages={packages}"]
        try:
            await self._execute(command, (theirs.fileno(), info_theirs, go_theirs))
            os.close(info_theirs)
            info_theirs = -1
            pid = (await asyncio.to_thread(_read_object, info_ours))["child-pid"]
            self._first = os.pidfd_open(pid)
            self._held.callback(os.close, self._first)
            if self._cgroup is not None:
                self._cgroup.limit(settings.memory_bytes, settings.processes)
                self._cgroup.add(pid)
            map_users(pid, users)
            os.write(go_ours, b"1")
        finally:
            for descriptor in (info_ours, info_theirs, go_theirs, go_ours):
                if descriptor >= 0:
                    os.close(descriptor)

    async def _spawn_bare(self, theirs: socket.socket) -> None:
        folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="unsafe-judge-"))
        command = self._start_command(str(self._settings.interpreter), str(isolation.INSIDE / "start.py"), theirs)
        command += ["uid=0", f"packages={self._settings.site_packages or ''}"]
        await self._execute(command, (theirs.fileno(),), folder)

    def _start_command(self, interpreter: str, script: str, theirs: socket.socket) -> list[str]:
        """The zygote's command, without the options that depend on the isolation."""
        settings = self._settings
        carets = () if settings.traceback_carets else ("-X", "no_debug_ranges")
        return [
            *(interpreter, "-S", "-s", "-X", "utf8", *carets, script, str(theirs.fileno())),
            AGAIN if settings.unsafe else FIRST_TIME,
            f"isolated={int(not settings.unsafe)}",
            f"kernel={int(self._cgroup is None)}",
            f"pipes={pipes_of_a_test(settings.sandboxes)}",
            f"paper_guard={int(settings.paper_guard)}",
            f"stdin_pipe={int(settings.stdin == 'pipe')}",
            f"stack={settings.stack_bytes}",
        ]

    async def _execute(self, command: list[str], descriptors: tuple[int, ...], folder: str | None = None) -> None:
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=self._messages,
                pass_fds=descriptors,
                cwd=folder or "/",
                env=isolation.ENVIRONMENT,
                # Ctrl-C in a terminal is for the command, which ends its sandboxes. uvloop knows no `process_group`.
                start_new_session=True,
            )
        )
        try:
            await asyncio.shield(starting)
        finally:  # a cancelled start waits for the process, because asyncio would end it without its children
            self._process = await starting

    async def _send(self, kind: bytes, facts: dict[str, Any] | None = None, data: bytes = b"") -> None:
        if self._writer is None:
            raise InfrastructureError("the sandbox is closed")
        head = marshal.dumps(facts, _MARSHAL_VERSION) if facts is not None else b""
        # One write: two would wake the sandbox twice.
        self._writer.write(_HEADER.pack(kind, len(head), len(data)) + head + data)
        healthy, self.healthy = self.healthy, False  # unhealthy until the whole frame is sent
        try:
            await self._writer.drain()
        except OSError as error:
            raise InfrastructureError(f"a sandbox broke: {error}") from error
        self.healthy = healthy

    async def _reply(self) -> tuple[bytes, dict[str, Any], bytes]:
        if self._reader is None:
            raise InfrastructureError("the sandbox is closed")
        healthy, self.healthy = self.healthy, False  # unhealthy until the whole reply has arrived
        try:
            async with asyncio.timeout(SILENT_LIMITS * self._limits.wall_limit + 60.0):
                kind, head, data = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                facts = json.loads(await self._reader.readexactly(head)) if head else {}
                contents = await self._reader.readexactly(data) if data else b""
        except TimeoutError:
            raise InfrastructureError("a sandbox does not answer") from None
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise InfrastructureError(f"a sandbox broke: {error}") from error
        self.healthy = healthy
        return kind, facts, contents


def _read_object(descriptor: int) -> Any:
    """A JSON object without objects in it that another process writes; the end of the file need not follow it."""
    text = b""
    while b"}" not in text and (part := os.read(descriptor, 4096)):
        text += part
    if not text.strip():
        raise InfrastructureError("bubblewrap ended before it had started a process")
    return json.loads(text)
