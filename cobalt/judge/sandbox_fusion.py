"""A second door to the judge: requests and answers in the wire format of SandboxFusion's `POST /run_code`.

Any tool that speaks to SandboxFusion can use this judge by setting its URL to `<address>/evaluator/run_code`, veRL's
own sandbox reward (`reward.sandbox_fusion.url`) among them. A program is run once on one input, under the same walls
as any other; comparing its output is the caller's business.

Covered: `code`, `stdin`, `run_timeout`, `memory_limit_MB`, `files` (base64 by relative path) and `language` "python".
Different from SandboxFusion: `run_timeout` (seconds) limits CPU time, and apart from it the time spent waiting, so that
a busy machine fails nobody; `compile_timeout` is accepted and has no effect, since Python has no build step, and as
there, a syntax error is a failed run. Not covered: other languages and `fetch_files` (both refused by name),
`/run_jupyter` and the other endpoints. Fields that SandboxFusion does not know are ignored, as it does.
"""

import base64
import binascii
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from cobalt.errors import InfrastructureError, UserError
from cobalt.judge.inside.program import FILE_NAME
from cobalt.judge.local import LocalJudge
from cobalt.judge.sandbox import Run
from cobalt.judge.settings import MIB, JudgeSettings

PATH = "run_code"

_LEAST_MEMORY_MIB = 64
_MOST_FILES = 1000  # folders included; a program's own file system has room for about four times as many
_LONGEST_PATH = 200
_PAGE = 4096


class RunCodeRequest(BaseModel):
    """One run of one program; names and defaults are SandboxFusion's.

    Attributes:
        code: The program.
        language: Only "python" is run here.
        stdin: Standard input; None is an empty one.
        compile_timeout: Accepted without effect.
        run_timeout: CPU seconds of the run, and as many more of waiting.
        memory_limit_MB: Memory in MiB; 0 or less is the judge's own limit.
        files: Files for the program's folder, base64 by relative path; a null is left out.
        fetch_files: Must be empty.
    """

    code: str
    language: Literal["python"] = "python"
    stdin: str | None = None
    compile_timeout: float = Field(10, gt=0)
    run_timeout: float = Field(10, gt=0, le=3600)
    memory_limit_MB: int = -1  # noqa: N815
    files: dict[str, str | None] = Field(default_factory=dict)
    fetch_files: list[str] = Field(default_factory=list, max_length=0)

    @field_validator("files")
    @classmethod
    def _fit_the_folder(cls, files: dict[str, str | None]) -> dict[str, str | None]:
        """Refuse here what would fail inside a sandbox, where a failed set-up costs the sandbox."""
        paths = {PurePosixPath(name) for name in files} | {PurePosixPath(FILE_NAME)}
        if len(paths) <= len(files):
            raise ValueError(f"a path twice, or one of them is {FILE_NAME}, the program's")
        if len(paths.union(*(path.parents for path in paths))) > _MOST_FILES:
            raise ValueError(f"more than {_MOST_FILES} files and folders")
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
        """The judge's settings with this request's limits, which may lower memory but not raise it."""
        memory = settings.memory_bytes
        if self.memory_limit_MB > 0:
            memory = min(memory, max(_LEAST_MEMORY_MIB, self.memory_limit_MB) * MIB)
        return settings.model_copy(
            update={"cpu_seconds": self.run_timeout, "wall_seconds": self.run_timeout, "memory_bytes": memory}
        )


async def run_code(payload: object, judge: LocalJudge) -> dict[str, Any]:
    """Answer one request; a failure of the judge is the status "SandboxError".

    Raises:
        UserError: the request is malformed or asks for what is not covered; the message names the field.
    """
    if not isinstance(payload, dict):
        raise UserError('a run_code request must be a JSON object {"code": ..., "language": "python", ...}')
    try:
        request = RunCodeRequest(**payload)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"field {'.'.join(map(str, first['loc']))!r}: {first['msg']}") from None
    limits = request.limits(judge.settings)
    files = {name: contents for name, contents in request.files.items() if contents is not None}
    # Base64 is a third longer, which leaves the program room; and every file fills whole pages.
    if sum(len(contents) + _PAGE for contents in files.values()) > limits.file_bytes:
        raise UserError(f"field 'files': more than the {limits.file_bytes} bytes that a program's folder holds")
    try:
        run = await judge.execute(request.code, request.stdin or "", limits, files)
    except InfrastructureError as error:
        return _answer("SandboxError", None, str(error))
    if isinstance(run, str):
        return _answer("Failed", _result("Finished", 0.0, 1, "", run))
    return _answer_run(run, limits)


def _answer_run(run: Run, limits: JudgeSettings) -> dict[str, Any]:
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


def _answer(status: str, result: dict[str, Any] | None, message: str = "") -> dict[str, Any]:
    return {
        "status": status,
        "message": message,
        "compile_result": None,
        "run_result": result,
        "executor_pod_name": None,
        "files": {},
    }
