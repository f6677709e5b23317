"""A second route to the judge: requests and answers in the wire format of SandboxFusion's `POST /run_code`.

A program is run once on one input, isolated as every other program; the caller compares its output.

- Covered: `code`, `stdin`, `run_timeout`, `memory_limit_MB`, `files` (base64 by relative path), `language` "python".
- Different: `run_timeout` (seconds) limits CPU time and, separately, the time spent waiting, so that a busy machine
  fails no program. `compile_timeout` limits nothing, because Python has no build step; as in SandboxFusion, a syntax
  error is a failed run.
- Not covered: other languages and `fetch_files` (both refused by name), `/run_jupyter` and the other endpoints.

Fields that SandboxFusion does not know are ignored, as in SandboxFusion. veRL's client retries on HTTP 504 alone, three
times in all; every other answer without a result is a failure of the program to it. So a request that cannot be
answered before that client's patience ends is answered 504, and so is every failure of the judge.
"""

import asyncio
import base64
import hashlib
import logging
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cobalt.judge.inside.program import FILE_NAME
from cobalt.judge.local import LocalJudge
from cobalt.judge.sandbox.sandbox import Execution
from cobalt.judge.settings import MIB, JudgeSettings
from cobalt.serving.http_guard import parsed
from cobalt.stage.errors import InfrastructureError, UserError

logger = logging.getLogger(__name__)

PATH = "run_code"
CLAIM_SECONDS = 10.0  # veRL's client asks again after one second, then after two

_CLIENTS_OWN_SECONDS = 10.0  # what veRL's client adds to the two timeouts of a request
_SHARE_OF_PATIENCE = 0.8  # the rest is for the transfer, which takes long on a busy machine

_LEAST_MEMORY_MIB = 64
_MOST_FILES = 1000  # folders included; a program's own file system has room for about four times as many
_LONGEST_PATH = 200
_PAGE = 4096


class RunCodeRequest(BaseModel):
    """One run of one program; names and defaults are SandboxFusion's.

    Attributes:
        code: The program.
        language: Only "python" is run here.
        stdin: Standard input; None: empty.
        compile_timeout: Seconds; determines with `run_timeout` how long the client waits, and limits nothing.
        run_timeout: Limit on the run's CPU seconds and, separately, on its seconds of waiting; at most the setting
            `max_run_seconds`.
        memory_limit_MB: Memory in MiB; 0 or less: the judge's own limit.
        files: Files for the program's folder, base64 by relative path; a file whose contents are null is left out.
        fetch_files: Must be empty.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    code: str
    language: Literal["python"] = "python"
    stdin: str | None = None
    compile_timeout: float = Field(10, gt=0)
    run_timeout: float = Field(10, gt=0)
    memory_limit_MB: int = -1  # noqa: N815
    files: dict[str, str | None] = Field(default_factory=dict)
    fetch_files: list[str] = Field(default_factory=list, max_length=0)

    @field_validator("files")
    @classmethod
    def _fit_the_folder(cls, files: dict[str, str | None]) -> dict[str, str]:
        """Normal paths of the files; refuses those that would fail inside a sandbox, where that breaks the sandbox."""
        contents_of = {PurePosixPath(name): contents for name, contents in files.items() if contents is not None}
        paths = {*map(PurePosixPath, files), PurePosixPath(FILE_NAME)}
        if len(paths) <= len(files):
            raise ValueError(f"a path is given twice, or is {FILE_NAME}, which is the program's own")
        if len(paths.union(*(path.parents for path in paths))) > _MOST_FILES:
            raise ValueError(f"more than {_MOST_FILES} files and folders are given")
        for name in files:
            path = PurePosixPath(name)
            strange = "\0" in name or name.endswith("/") or len(name.encode(errors="replace")) > _LONGEST_PATH
            if path.is_absolute() or ".." in path.parts or not path.name or strange:
                raise ValueError(
                    f"{name[:80]!r} is not a relative path below the program's folder of {_LONGEST_PATH} bytes or fewer"
                )
            if paths.intersection(path.parents):
                raise ValueError(f"{name!r} lies below another file")
        for path, contents in contents_of.items():
            try:
                base64.b64decode(contents, validate=True)
            except ValueError:
                raise ValueError(f"the contents of {str(path)!r} are not base64") from None
        return {str(path): contents for path, contents in contents_of.items()}

    def limits(self, settings: JudgeSettings) -> JudgeSettings:
        """The judge's settings with this request's limits; a request may lower the memory limit but not raise it."""
        memory = settings.memory_bytes
        if self.memory_limit_MB > 0:
            memory = min(memory, max(_LEAST_MEMORY_MIB, self.memory_limit_MB) * MIB)
        return settings.model_copy(
            update={"cpu_seconds": self.run_timeout, "wall_seconds": self.run_timeout, "memory_bytes": memory}
        )

    @property
    def patience(self) -> float:
        """Seconds after which the client must have an answer, even if the program has no result yet."""
        return _SHARE_OF_PATIENCE * (self.compile_timeout + self.run_timeout + _CLIENTS_OWN_SECONDS)


class RunCode:
    """The handler of the route. A program that is not finished in time goes on for a while: its client may ask again.

    Args:
        judge: The judge that runs programs.
        max_run_seconds: The largest `run_timeout`, in seconds.
    """

    def __init__(self, judge: LocalJudge, max_run_seconds: float) -> None:
        self._judge, self._max_run_seconds = judge, max_run_seconds
        # Programs whose clients may ask again, with the digest of the request and the end of the time for that.
        self._unclaimed: dict[asyncio.Task[Execution | str], tuple[bytes, asyncio.TimerHandle]] = {}

    async def answer(self, payload: object) -> dict[str, Any]:
        """Answer one request.

        Raises:
            UserError: the request is malformed or asks for something that is not covered; the message names the field.
            InfrastructureError: there is no result in time, or the judge failed; the client should ask again.
        """
        request, limits = self._read(payload)
        key = hashlib.sha256(request.model_dump_json().encode()).digest()
        task = self._claimed(key) or self._started(request, limits)
        try:
            await asyncio.wait({task}, timeout=request.patience)
        finally:
            if not task.done():
                expiry = asyncio.get_running_loop().call_later(CLAIM_SECONDS, self._drop, task)
                self._unclaimed[task] = key, expiry
        if not task.done():
            raise InfrastructureError("no sandbox has finished this program yet: send the same request again")
        run = await task
        return _answer("Finished", 1, stderr=run) if isinstance(run, str) else _answer_run(run, limits)

    def _read(self, payload: object) -> tuple[RunCodeRequest, JudgeSettings]:
        request = parsed(RunCodeRequest, payload)
        if request.run_timeout > self._max_run_seconds:
            raise UserError(f"field 'run_timeout': more than {self._max_run_seconds:g} s (max_run_seconds)")
        limits = request.limits(self._judge.settings)
        texts = (request.code, *(contents or "" for contents in request.files.values()))
        # Sizes in base64 are a third too large, which leaves the program room. Every file fills whole pages.
        if sum(len(text.encode()) + _PAGE for text in texts) > limits.file_bytes:
            raise UserError(
                f"fields 'code' and 'files': more than the {limits.file_bytes} bytes that a program's folder holds"
            )
        return request, limits

    def _claimed(self, key: bytes) -> "asyncio.Task[Execution | str] | None":
        """The program that an earlier, equal request has left, unless the judge has failed."""
        for task, (digest, expiry) in list(self._unclaimed.items()):
            if digest == key:
                expiry.cancel()
                del self._unclaimed[task]
                if not task.done() or task.exception() is None:
                    return task
        return None

    def _drop(self, task: "asyncio.Task[Execution | str]") -> None:
        """End a program that nobody has asked for again."""
        del self._unclaimed[task]
        task.cancel()

    def _started(self, request: RunCodeRequest, limits: JudgeSettings) -> "asyncio.Task[Execution | str]":
        files = {path: contents for path, contents in request.files.items() if contents is not None}
        task = asyncio.create_task(self._judge.execute(request.code, request.stdin or "", limits, files))
        task.add_done_callback(_log_failure)
        return task


def _log_failure(task: "asyncio.Task[Execution | str]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("the judge failed", extra={"error": str(task.exception())})


def _answer_run(run: Execution, limits: JudgeSettings) -> dict[str, Any]:
    stdout, stderr = run.stdout.decode("utf-8", "replace"), run.stderr.decode("utf-8", "replace")
    if run.end in ("cpu", "wall") or run.cpu_seconds > limits.cpu_seconds:
        return _answer("TimeLimitExceeded", None, run.wall_seconds, stdout, stderr)
    code = 0 if run.end == "exit" and run.status == 0 else run.status or 1
    if run.end == "memory":
        stderr += (
            f"MemoryError: the program used more than {limits.memory_bytes // MIB} MiB of memory and was stopped.\n"
        )
    if run.end == "output" or run.output_bytes > limits.output_bytes:
        stderr += f"OutputLimitError: the program wrote more than {limits.output_bytes} bytes.\n"
        code = run.status or 1
    return _answer("Finished", code, run.wall_seconds, stdout, stderr)


def _answer(status: str, code: int | None, seconds: float = 0.0, stdout: str = "", stderr: str = "") -> dict[str, Any]:
    run = {"status": status, "execution_time": seconds, "return_code": code, "stdout": stdout, "stderr": stderr}
    return {
        "status": "Success" if code == 0 else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": run,
        "executor_pod_name": None,
        "files": {},
    }
