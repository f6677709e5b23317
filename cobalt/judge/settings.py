"""The judge's settings: limits, comparison, concurrency and the Python that programs run under."""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from cobalt.problems.problem import Comparison
from cobalt.stage.settings import read_settings

MIB = 1 << 20
ENVIRONMENT_PREFIX = "COBALT_JUDGE_"


PAPER: dict[str, Any] = {
    "wall_seconds": 4.0,
    "suite_seconds": 27.0,
    "suite_cpu_seconds": None,
    "suite_wall_seconds": None,
    "stack_bytes": 1024 * MIB,
    "output_bytes": 64 * MIB,
    "open_files": 1024,
    "prelude": "none",
    "paper_guard": True,
    "stdin": "pipe",
    "traceback_carets": False,
    "syntax_warnings": True,
}
"""Differences of the paper's judge from the defaults. Its limits are 4 s, 27 s and 1 GiB; others are out of the way."""


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


class JudgeSettings(BaseModel):
    """Settings by which programs are run and compared. The defaults are the paper's where it states a value.

    Attributes:
        cpu_seconds: CPU time of a test, the program and its descendants together (paper: 4 s).
        wall_seconds: Time that a test may be idle, neither computing nor ready to compute. A test ends after twenty
            times this limit in any case. None: three times `cpu_seconds`, at least 10 s.
        suite_cpu_seconds: CPU time of a whole suite, counted in list order; tests beyond it are `not_run`.
        suite_wall_seconds: Seconds that the tests of a suite may be idle together; tests beyond it are `not_run`.
        suite_seconds: Time limit of a whole suite in seconds (paper: 27 s), counted as on an idle machine that runs
            four tests at a time. Beyond it all tests are `not_run`, and the pass rate is 0.
        memory_bytes: Limit on the address space of each process, and on the resident memory of all of a test's
            processes together (paper: 1 GiB).
        output_bytes: Limit on a test's standard output; more gives the verdict `output_limit`.
        stack_bytes: Room for the main thread's stack, within `memory_bytes`.
        file_bytes: Largest file a program may write, and the size of its private temporary file system.
        processes: Processes and threads a test may have at once.
        open_files: File descriptors a process may have.
        comparison: "strip": the whole outputs, stripped, must be equal (paper). "lines": line by line, stripped; tokens
            are equal as text or as decimal numbers. "float": as "lines", with numbers equal within the tolerances. The
            values of called functions are compared as values (docs/judge.md).
        float_absolute, float_relative: The tolerances of "float".
        allow_top_level_return: Let a program `return` outside a function, which ends the program.
        prelude: Code that runs before a program whose suite does not set it: the imports of the graders of public
            data sets (`cobalt.judge.prelude`), or nothing (paper).
        paper_guard: Remove from programs the names that the authors' guard removes (paper). The isolation is the same.
        stdin: Kind of standard input: a file, or a pipe (paper), except where the suite calls a function.
        traceback_carets: Whether tracebacks mark the part of a line that failed (3.11 and later; paper: 3.10).
        syntax_warnings: Whether standard error begins with the compiler's warnings, as in `python main.py` (paper).
        paper: Use the paper's values for all settings that have one (`PAPER`); one that is given as well counts.
        concurrency: Number of sandboxes, and so of tests at once; None: one more than there are usable cores, so that
            no core is idle while a sandbox goes from one test to the next.
        python: Interpreter that programs run under; None: the interpreter of this process.
        site_packages: A folder of packages to offer to programs, which every user must be able to read. None: standard
            library only (paper).
        memory_accounting: Enforcer of the limit on memory: the kernel, by a cgroup for each sandbox; the judge, which
            adds up processes, files, sockets and pipes every 50 ms ("sum"); or the kernel where it can ("auto").
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
    stack_bytes: int = Field(120 * MIB, ge=MIB)
    file_bytes: int = Field(64 * MIB, ge=1024)
    processes: int = Field(32, ge=1)
    open_files: int = Field(128, ge=16)
    comparison: Comparison = "strip"
    float_absolute: float = Field(1e-6, ge=0)
    float_relative: float = Field(1e-6, ge=0)
    allow_top_level_return: bool = False
    prelude: Literal["graders", "none"] = "graders"
    paper_guard: bool = False
    stdin: Literal["file", "pipe"] = "file"
    traceback_carets: bool = True
    syntax_warnings: bool = False
    paper: bool = False
    concurrency: int | None = Field(None, ge=1)
    python: Path | None = None
    site_packages: Path | None = None
    memory_accounting: Literal["auto", "cgroup", "sum"] = "auto"
    unsafe: bool = False

    @model_validator(mode="before")
    @classmethod
    def _as_in_the_paper(cls, values: Any) -> Any:
        if isinstance(values, dict) and TypeAdapter(bool).validate_python(values.get("paper", False)):
            return PAPER | values
        return values

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
        """Number of sandboxes that a pool holds."""
        return self.concurrency if self.concurrency is not None else usable_cores() + 1

    @property
    def interpreter(self) -> Path:
        """The interpreter that programs run under, links and virtual environments resolved."""
        return Path(self.python if self.python is not None else sys.executable).resolve()

    def decisive(self) -> dict[str, Any]:
        """The settings that decide verdicts, JSON-able, for the manifest of a run."""
        left_out = {"concurrency", "memory_accounting", "wall_seconds", "python"}
        # These are named where they differ from the default.
        optional = ("stack_bytes", "prelude", "stdin", "traceback_carets", "syntax_warnings", "paper")
        left_out |= {name for name in optional if getattr(self, name) == type(self).model_fields[name].default}
        interpreter = str(self.interpreter) if self.python is not None else platform.python_version()
        values = self.model_dump(mode="json", exclude=left_out)
        # The budget of CPU time that manifests name was a setting.
        return values | {"wall_seconds": self.wall_limit, "python": interpreter}

    @classmethod
    def read(cls, arguments: Mapping[str, Any] | None = None) -> Self:
        """The settings of key=value arguments and of this process's `COBALT_JUDGE_<NAME>` variables.

        Raises:
            UserError: a name is unknown or a value is bad; the message names it.
        """
        return read_settings(cls, arguments or {}, os.environ, ENVIRONMENT_PREFIX)
