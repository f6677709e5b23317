"""The judge's settings: limits, comparison, concurrency and the Python that programs run under.

One frozen model holds them all; `from_mapping` reads them from flags or environment variables as text. It
checks values, never the machine.
"""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cobalt.settings import read_settings

MIB = 1 << 20
ENVIRONMENT_PREFIX = "COBALT_JUDGE_"

Comparison = Literal["strip", "lines", "float"]


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0))


class JudgeSettings(BaseModel):
    """How programs are run and compared. The defaults are the paper's where it states a value.

    Attributes:
        cpu_seconds: CPU time of a test, program and descendants together (paper: 4 s).
        wall_seconds: Time that a test may spend neither computing nor ready to, a guard for programs that sleep
            or wait; default three times `cpu_seconds` and at least 10 s. What a busy machine takes from a
            program does not count, up to twenty times this limit.
        suite_cpu_seconds: CPU time of a whole suite, counted in list order; tests beyond it are `not_run`.
            None: no budget besides that of each test.
        suite_wall_seconds: Time that the tests of a suite together may spend neither computing nor ready to, in
            seconds, counted in list order; tests beyond it are `not_run`. None: no budget besides that of each test.
        suite_seconds: Time of a whole suite in seconds, as if four tests were run at a time on an idle machine, each
            for its computing and its waiting (paper: 27 s). Beyond it no test of the suite counts: all are
            `not_run`, and the pass rate is 0. None: no such limit.
        memory_bytes: Address space of each process, and resident memory of all of a test's processes
            together (paper: 1 GiB).
        output_bytes: Standard output of a test; more is the verdict `output_limit`.
        file_bytes: Largest file a program may write, and the size of its private temporary file system.
        processes: Processes and threads a test may have at once.
        open_files: File descriptors a process may have.
        comparison: "strip": whole outputs stripped, exact (the paper's). "lines": line by line, stripped,
            tokens equal as text or as decimal numbers of ASCII digits. "float": as "lines", numbers within the
            tolerances. The values of called functions are compared as values (docs/judge.md).
        float_absolute, float_relative: The tolerances of "float".
        allow_top_level_return: Let a program `return` outside a function, which ends it.
        paper_guard: Take from programs what the authors' guard takes, so that those which call `exit()`, import
            `resource` or from `__future__`, use `os.system` or write below /tmp fail as they do there (paper: on).
            The isolation is the same.
        concurrency: Sandboxes, and so tests at once; None: one for each usable core.
        python: Interpreter that programs run under; None: the one this process runs.
        site_packages: A folder of packages to offer to programs, read-only; every user must be able to read it.
            None: standard library only, as under `python -S` (paper).
        memory_accounting: Who keeps the limit on memory. "cgroup": the kernel, by a cgroup for each sandbox, with
            everything that it holds for a program. "sum": the judge, which adds up processes, files, sockets and
            pipes every 50 ms. "auto": the kernel where this process may make cgroups, otherwise the judge.
        unsafe: Run programs without isolation, as plain processes. Every result then says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu_seconds: float = Field(4.0, gt=0, le=3600)
    wall_seconds: float | None = Field(None, gt=0)
    suite_cpu_seconds: float | None = Field(None, gt=0)
    suite_wall_seconds: float | None = Field(60.0, gt=0)
    suite_seconds: float | None = Field(None, gt=0)
    memory_bytes: int = Field(1024 * MIB, ge=64 * MIB)
    output_bytes: int = Field(16 * MIB, ge=1024)
    file_bytes: int = Field(64 * MIB, ge=1024)
    processes: int = Field(32, ge=1)
    open_files: int = Field(128, ge=16)
    comparison: Comparison = "strip"
    float_absolute: float = Field(1e-6, ge=0)
    float_relative: float = Field(1e-6, ge=0)
    allow_top_level_return: bool = False
    paper_guard: bool = False
    concurrency: int | None = Field(None, ge=1)
    python: Path | None = None
    site_packages: Path | None = None
    memory_accounting: Literal["auto", "cgroup", "sum"] = "auto"
    unsafe: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.output_bytes > self.file_bytes:
            raise ValueError("output_bytes must not exceed file_bytes")
        if self.wall_seconds is not None and self.wall_seconds < self.cpu_seconds:
            raise ValueError("wall_seconds must not be below cpu_seconds")
        return self

    @property
    def wall_limit(self) -> float:
        """The wall guard of a test, in seconds."""
        return self.wall_seconds if self.wall_seconds is not None else max(10.0, 3.0 * self.cpu_seconds)

    @property
    def sandboxes(self) -> int:
        """How many sandboxes a pool holds."""
        return self.concurrency if self.concurrency is not None else usable_cores()

    @property
    def interpreter(self) -> Path:
        """The interpreter that programs run under, links and virtual environments resolved."""
        return Path(self.python if self.python is not None else sys.executable).resolve()

    def decisive(self) -> dict[str, Any]:
        """What decides a verdict, JSON-able, for the manifest of a run.

        All but the number of sandboxes, and who keeps the limit on memory, which is the same limit.
        """
        left_out = {"concurrency", "memory_accounting", "wall_seconds", "python", "site_packages"}
        values = self.model_dump(mode="json", exclude=left_out)
        interpreter = str(self.interpreter) if self.python is not None else platform.python_version()
        packages = None if self.site_packages is None else str(self.site_packages)
        return values | {"wall_seconds": self.wall_limit, "python": interpreter, "site_packages": packages}

    @classmethod
    def from_mapping(cls, arguments: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Self:
        """Read settings from key=value arguments, `COBALT_JUDGE_<NAME>` variables and a file; see `read_settings`.

        Raises:
            UserError: an unknown name or a bad value; the message names it.
        """
        return read_settings(cls, arguments, environment or {}, ENVIRONMENT_PREFIX)
