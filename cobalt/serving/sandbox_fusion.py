"""A second route to the judge: requests and answers in the wire format of SandboxFusion's `POST /run_code`.

Any client of SandboxFusion can use this judge by setting its URL to `<address>/evaluator/run_code`, for example veRL's
sandbox reward (`reward.sandbox_fusion.url`). A program is run once on one input, isolated as every other program; the
caller compares its output.

- Covered: `code`, `stdin`, `run_timeout`, `memory_limit_MB`, `files` (base64 by relative path), `language` "python".
- Different: `run_timeout` (seconds) limits CPU time and, separately, the time spent waiting, so that a busy machine
  fails no program. `compile_timeout` limits nothing, because Python has no build step; as in SandboxFusion, a syntax
  error is a failed run.
- Not covered: other languages and `fetch_files` (both refused by name), `/run_jupyter` and the other endpoints.

Fields that SandboxFusion does not know are ignored, as in SandboxFusion.

veRL's client waits `compile_timeout + run_timeout + 10` seconds for an answer. If the answer is HTTP 504 it asks again,
up to three times in all. Every other answer without a result counts as a failure of the program. So a request that
cannot be answered within four fifths of that time is answered 504, and so is every failure of the judge. Its program is
given up: a client that asks again, or that lost its connection, has it run again from the end of the queue.
"""

import asyncio
import base64
import binascii
import logging
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cobalt.judge.inside.program import FILE_NAME
from cobalt.judge.local import LocalJudge
from cobalt.judge.sandbox.sandbox import Execution
from cobalt.judge.settings import MIB, JudgeSettings
from cobalt.stage.errors import InfrastructureError, UserError

logger = logging.getLogger(__name__)

PATH = "run_code"

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
    def _fit_the_folder(cls, files: dict[str, str | None]) -> dict[str, str | None]:
        """Refuse files that would fail inside a sandbox, where a failed set-up breaks the sandbox."""
        paths = {PurePosixPath(name) for name in files} | {PurePosixPath(FILE_NAME)}
        if len(paths) <= len(files):
            raise ValueError(f"a path is given twice, or is {FILE_NAME}, which is the program's own")
        if len(paths.union(*(path.parents for path in paths))) > _MOST_FILES:
            raise ValueError(f"more than {_MOST_FILES} files and folders are given")
        for name, contents in files.items():
            path = PurePosixPath(name)
            strange = "\0" in name or name.endswith("/") or len(name.encode(errors="replace")) > _LONGEST_PATH
            if path.is_absolute() or ".." in path.parts or not path.name or strange:
                raise ValueError(
                    f"{name[:80]!r} is not a relative path below the program's folder of {_LONGEST_PATH} bytes or fewer"
                )
            if paths.intersection(path.parents):
                raise ValueError(f"{name!r} lies below another file")
            try:
                base64.b64decode(contents or "", validate=True)
            except binascii.Error:
                raise ValueError(f"the contents of {name!r} are not base64") from None
        return files

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


async def run_code(judge: LocalJudge, payload: object, *, max_run_seconds: float) -> dict[str, Any]:
    """Answer one request.

    Args:
        judge: The judge that runs the program.
        payload: The request's body, as parsed JSON.
        max_run_seconds: The largest `run_timeout`, in seconds.

    Raises:
        UserError: the request is malformed or asks for something that is not covered; the message names the field.
        InfrastructureError: there is no result yet, or the judge failed; the client should ask again.
    """
    request = _read(payload)
    if request.run_timeout > max_run_seconds:
        raise UserError(f"field 'run_timeout': more than {max_run_seconds:g} s (max_run_seconds)")
    limits = request.limits(judge.settings)
    # Paths in the normal form that was checked: "a/." is "a".
    files = {str(PurePosixPath(name)): contents for name, contents in request.files.items() if contents is not None}
    size = sum(len(contents) + _PAGE for contents in files.values())
    # The sizes are those of base64, a third too large, which leaves the program room. Every file fills whole pages.
    if size + len(request.code.encode()) + _PAGE > limits.file_bytes:
        raise UserError(
            f"fields 'code' and 'files': more than the {limits.file_bytes} bytes that a program's folder holds"
        )
    try:
        async with asyncio.timeout(request.patience):
            run = await judge.execute(request.code, request.stdin or "", limits, files)
    except TimeoutError:
        raise InfrastructureError("no sandbox has finished this program yet: send the same request again") from None
    except InfrastructureError as error:
        logger.error("the judge failed", extra={"error": str(error)})
        raise
    if isinstance(run, str):
        return _answer("Failed", _result("Finished", 0.0, 1, "", run))
    return _answer_run(run, limits)


def _read(payload: object) -> RunCodeRequest:
    try:
        return RunCodeRequest.model_validate(payload)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"field {'.'.join(map(str, first['loc'])) or 'body'!r}: {first['msg']}") from None


def _answer_run(run: Execution, limits: JudgeSettings) -> dict[str, Any]:
    stdout, stderr = run.stdout.decode("utf-8", "replace"), run.stderr.decode("utf-8", "replace")
    if run.end in ("cpu", "wall") or run.cpu_seconds > limits.cpu_seconds:
        return _answer("Failed", _result("TimeLimitExceeded", run.wall_seconds, None, stdout, stderr))
    if run.end == "memory":
        stderr += (
            f"MemoryError: the program used more than {limits.memory_bytes // MIB} MiB of memory and was stopped.\n"
        )
    if run.end == "output" or run.output_bytes > limits.output_bytes:
        stderr += f"OutputLimitError: the program wrote more than {limits.output_bytes} bytes.\n"
    elif run.end == "exit" and run.status == 0:
        return _answer("Success", _result("Finished", run.wall_seconds, 0, stdout, stderr))
    return _answer("Failed", _result("Finished", run.wall_seconds, run.status or 1, stdout, stderr))


def _result(status: str, seconds: float, code: int | None, stdout: str, stderr: str) -> dict[str, Any]:
    return {"status": status, "execution_time": seconds, "return_code": code, "stdout": stdout, "stderr": stderr}


def _answer(status: str, result: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": status,
        "message": "",
        "compile_result": None,
        "run_result": result,
        "executor_pod_name": None,
        "files": {},
    }
