"""The log of paid calls: each answer is written when it arrives, so that a resumed run never pays for it again.

Next to `X.jsonl` there is `X.calls.jsonl`, with one record for each call: answer, cost and the provider's usage.
A call is found by its content (model, parameters, conversation, part of the run), never by its position.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from cobalt.engine.base import Completion
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_result_path
from cobalt.stage.manifest import companion_path
from cobalt.stage.records import RecordFile, iterate_records


def calls_path(result: Path) -> Path:
    """The path of a result file's call log."""
    return companion_path(result, ".calls.jsonl")


class CallLog:
    """The paid calls of one result file, or of none; a context manager, held by one process at a time.

    `spent` is the cost of all its calls in US dollars, including those of earlier runs. Raises UserError: the log
    cannot be written or is malformed, or another process is writing it.
    """

    def __init__(self, result: Path | None = None) -> None:
        self._file: RecordFile | None = None
        self._answers: dict[str, Completion] = {}
        if result is not None:
            check_result_path(result)
            path = calls_path(result)
            self._file = RecordFile(path)  # first: until it is locked, another process may still write
            try:
                records = iterate_records(path, unfinished=True)
                self._answers = {str(each["id"]): Completion.model_validate(each.get("completion")) for each in records}
            except ValidationError:
                self.__exit__(None, None, None)
                raise UserError(f"{path} is not a log of calls: move it away") from None
        self.spent = sum(completion.cost or 0.0 for completion in self._answers.values())

    def find(self, key: str) -> Completion | None:
        """The answer to the call with this key; None if it has not been paid for."""
        return self._answers.get(key)

    async def append(self, key: str, completion: Completion, usage: Mapping[str, Any]) -> None:
        """Write one answer and return when it is on the disk; without a file its cost alone is kept."""
        self.spent += completion.cost or 0.0
        if self._file is not None:
            self._answers[key] = completion
            record = {"id": key, "completion": completion.model_dump(), "usage": dict(usage)}
            await asyncio.to_thread(self._file.append, record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._file is not None:
            self._file.__exit__(*exception)
