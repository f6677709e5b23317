"""One sandbox on this machine: starts it, runs one test at a time in it, ends it.

Reports what happened as plain facts (`Run`); it knows no expected output and gives no verdict.
"""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cobalt.errors import InfrastructureError
from cobalt.judge.isolation import bwrap_command, interpreter_inside
from cobalt.judge.settings import JudgeSettings

End = Literal["exit", "compile", "cpu", "wall", "memory", "output"]


@dataclass(frozen=True, slots=True)
class Run:
    """How one execution of a program ended: by itself, at compilation, or at a limit."""

    end: End
    status: int | None
    cpu_seconds: float
    wall_seconds: float
    peak_memory_bytes: int | None
    stdout: bytes
    stderr: bytes


_BOOT = """
import resource as r, os, sys
cpu, memory, file, files = map(int, sys.argv[1:])
r.setrlimit(r.RLIMIT_CPU, (cpu, cpu + 1)); r.setrlimit(r.RLIMIT_AS, (memory, memory))
r.setrlimit(r.RLIMIT_FSIZE, (file, file)); r.setrlimit(r.RLIMIT_NOFILE, (files, files)); r.setrlimit(r.RLIMIT_CORE, (0, 0))
os.execv(sys.executable, [sys.executable, "-S", "-X", "utf8", "-c",
    "import builtins, _sitebuiltins as s; builtins.exit = s.Quitter('exit', ''); builtins.quit = builtins.exit; "
    "exec(compile(open('/tmp/main.py', 'rb').read(), 'main.py', 'exec'))"])
"""


class Sandbox:
    """A sandbox for one test at a time."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings

    async def run(self, code: str, stdin: bytes) -> Run:
        """Run a program once on one input.

        Raises:
            InfrastructureError: the sandbox could not be built or broke.
        """
        s = self._settings
        program = os.memfd_create("program")
        out, err, given = os.memfd_create("out"), os.memfd_create("err"), os.memfd_create("in")
        os.write(program, code.encode("utf-8", "surrogatepass"))
        view = memoryview(stdin)
        while view:
            view = view[os.write(given, view) :]
        os.lseek(program, 0, 0)
        os.lseek(given, 0, 0)
        command = [*bwrap_command(s, Path(__file__)), "--file", str(program), "/tmp/main.py"]
        arguments = [int(-(-s.cpu_seconds // 1)), s.memory_bytes, s.file_bytes, s.open_files]
        command += [interpreter_inside(s), "-I", "-S", "-c", _BOOT, *map(str, arguments)]
        started, end = time.monotonic(), "exit"
        try:
            pid = os.posix_spawn(
                command[0],
                command,
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, out, 1),
                              (os.POSIX_SPAWN_DUP2, err, 2), (os.POSIX_SPAWN_DUP2, program, program)],
            )
            loop = asyncio.get_running_loop()
            waited = loop.run_in_executor(None, os.wait4, pid, 0)
            try:
                _, raw, usage = await asyncio.wait_for(asyncio.shield(waited), s.wall_limit)
            except asyncio.TimeoutError:
                os.kill(pid, signal.SIGKILL)
                _, raw, usage = await waited
                end = "wall"
            status = os.waitstatus_to_exitcode(raw)
            stdout, stderr = (os.pread(fd, s.output_bytes + 1, 0) for fd in (out, err))
        finally:
            for fd in (program, out, err, given):
                os.close(fd)
        cpu = usage.ru_utime + usage.ru_stime
        if stderr.startswith(b"bwrap:"):
            raise InfrastructureError(f"the sandbox did not start: {stderr[:300]!r}")
        if end == "exit" and status in (137, 152):
            end = "cpu"
        elif len(stdout) > s.output_bytes:
            end = "output"
        elif status and stderr.strip().rpartition(b"\n")[2].startswith(b"MemoryError"):
            end = "memory"
        elif status and b"SyntaxError" in stderr.strip().rpartition(b"\n")[2]:
            end = "compile"
        return Run(end, status, cpu, time.monotonic() - started, usage.ru_maxrss * 1024, stdout, stderr)  # type: ignore[arg-type]
