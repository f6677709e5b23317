"""An engine that answers with recorded responses, so that a run can be judged again without a model.

It looks responses up by problem, turn and sample, whatever the conversation says: if today's judge words its
feedback differently, the recorded programs are judged all the same. It generates nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.conversation import Message
from cobalt.engine.base import Call, Completion, GenerationSettings
from cobalt.errors import UserError
from cobalt.manifest import file_digest
from cobalt.problem import ProblemId
from cobalt.records import read_records


class ReplayEngine:
    """Replays the `raw_responses` of a multi-turn file or the `responses` of a single-turn one."""

    def __init__(self, path: Path, samples: int) -> None:
        """Read the recorded file, of which the first `samples` responses of each problem will be used.

        Raises:
            UserError: unreadable, or a record has neither field or fewer responses.
        """
        self._path = path
        self._responses: dict[ProblemId, list[list[str]]] = {}
        for record in read_records(path):
            turns = record.get("raw_responses", [record["responses"]] if "responses" in record else None)
            if not turns:
                raise UserError(f"{path}: record {record['id']!r} has neither 'raw_responses' nor 'responses'")
            if not all(isinstance(turn, list) and all(isinstance(text, str) for text in turn) for turn in turns):
                raise UserError(f"{path}: record {record['id']!r}: the recorded responses must be lists of strings")
            if len(turns[0]) < samples:
                raise UserError(
                    f"{path}: record {record['id']!r} has {len(turns[0])} responses, and {samples} are asked for:"
                    f" give -n {len(turns[0])}"
                )
            self._responses[record["id"]] = turns

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """The recorded completions of this call; one that is missing is a completion with an error."""
        turns = self._responses.get(call.problem_id, [])
        responses = turns[call.turn] if call.turn < len(turns) else []
        wanted = range(settings.n) if call.sample is None else [call.sample]
        return [
            Completion(text=responses[index], finish_reason="stop")
            if index < len(responses)
            else Completion(text="", finish_reason="error", message=f"{self._path.name} holds no response for {call}")
            for index in wanted
        ]

    async def describe(self) -> Mapping[str, Any]:
        """The digest of the recorded file."""
        return {"replay": file_digest(self._path)}
