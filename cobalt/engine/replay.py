"""An engine that answers with recorded responses, so that a run can be judged again without a model.

It finds responses by problem, turn and sample and does not read the conversation. So recorded programs are judged even
if the judge's feedback differs from the recorded feedback. It generates nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    """Replays the responses of a multi-turn or single-turn file; UserError if it cannot be read or has none.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._responses: dict[ProblemId, list[tuple[str, ...]]] = {}  # [sample][turn]
        for record in iterate_records(path):
            with naming(f"{path}: record {record['id']!r}"):
                self._responses[record["id"]] = decode_responses(record)

    def check(self, problems: Iterable[ProblemId], samples: int, turns: int) -> None:
        """Raise UserError unless the file has so many samples of so many turns of each problem."""
        for problem in problems:
            recorded = self._responses.get(problem, [])
            longest = len(recorded[0]) if recorded else 0  # samples of a problem have the same number of turns
            if len(recorded) < samples or longest < turns:
                raise UserError(
                    f"{self.path} has {len(recorded)} samples of {longest} turns for problem {problem!r}, and {samples}"
                    f" of {turns} are asked for: give the file that was recorded with these problems, or fewer by -n,"
                    " --turns or --ids"
                )

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """The recorded completions of this call."""
        samples = range(settings.n) if call.sample is None else [call.sample]
        recorded = self._responses[call.problem_id]
        return [Completion(text=recorded[sample][call.turn], finish_reason="stop") for sample in samples]

    async def describe(self) -> Mapping[str, Any]:
        """The digest of the recorded file."""
        return {"replay": file_digest(self.path)}
