"""An engine that answers with recorded responses, so that a run can be judged again without a model.

It finds responses by problem, turn and sample and does not read the conversation. So recorded programs are judged even
if the judge's feedback differs from the recorded feedback. It generates nothing.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from cobalt.engine.base import Call, Completion, GenerationSettings
from cobalt.episode import Message
from cobalt.episode.record import decode_responses
from cobalt.problems.problem import ProblemId
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import file_digest
from cobalt.stage.records import iterate_records


class ReplayEngine:
    """Replays the responses of a multi-turn or single-turn file.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, samples: int) -> None:
        """Read the recorded file; the first `samples` responses of each problem will be used.

        Raises:
            UserError: the file cannot be read, or a record has no responses or fewer than `samples`.
        """
        self.path = path
        self._responses: dict[ProblemId, list[tuple[str, ...]]] = {}  # [sample][turn]
        for record in iterate_records(path):
            with naming(f"{path}: record {record['id']!r}"):
                recorded = decode_responses(record)
            if len(recorded) < samples:
                raise UserError(
                    f"{path}: record {record['id']!r} has {len(recorded)} responses, and {samples} are asked for:"
                    f" give -n {len(recorded)}"
                )
            self._responses[record["id"]] = recorded

    @property
    def turns(self) -> int:
        """The turns of the longest trajectory in the file."""
        return max((len(turns) for samples in self._responses.values() for turns in samples), default=0)

    @property
    def problems(self) -> Set[ProblemId]:
        """The problems that the file holds responses for."""
        return self._responses.keys()

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """The recorded completions of this call; a missing one becomes a completion with an error."""
        samples = self._responses.get(call.problem_id, [])
        wanted = samples[: settings.n] if call.sample is None else samples[call.sample :][:1]
        completions = [
            Completion(text=responses[call.turn], finish_reason="stop")
            for responses in wanted
            if call.turn < len(responses)
        ]
        message = f"{self.path.name} holds no response for {call}"
        missing = Completion(text="", finish_reason="error", message=message)
        return completions + [missing] * (settings.n - len(completions))

    async def describe(self) -> Mapping[str, Any]:
        """The digest of the recorded file."""
        return {"replay": file_digest(self.path)}
