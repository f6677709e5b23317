"""Write the groups of a source into files for training and validation, and count what became of problems and programs.

Problems with statements that models will be evaluated on are left out, problems with similar statements get into the
same file, and prompts and responses over the limit of length are left out.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cobalt.datasets.offline.contrast import Candidate, make_groups
from cobalt.datasets.offline.groups import OfflineGroup, Status
from cobalt.datasets.offline.settings import TRAIN, VALIDATION, GroupSettings
from cobalt.datasets.offline.similarity import letters, similar_pairs
from cobalt.episode import Message
from cobalt.episode.chat_template import template_arguments
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.stage.errors import UserError, tally
from cobalt.stage.rows import read_rows
from cobalt.stage.run import Outcome, Whole, made, quoted
from cobalt.stage.tally import Summary, Tally, with_first

# What becomes of a problem; keys of a run's counts.
READ = "read"
EVALUATED = "dropped: similar to an evaluation problem"
LONG_PROMPT = "dropped: the prompt leaves no room for a response"
NO_GROUP = "dropped: no accepted program, or no other, or too few in all"

# What groups are, besides the files.
EQUAL_REWARDS = "with equal rewards: no gradient"
NONE_ACCEPTED = "without an accepted response"

_DECIDING = (
    "group_size", "contrast", "max_accepted", "near_duplicates", "validation_share", "similarity", "seed"
)  # fmt: skip
"""Settings that decide the groups, besides those that are recorded in another form."""
_QUESTION_FIELDS = ("question", "question_content", "instruction", "text")
"""Fields in which problem files have statements: this project's and TACO's, LiveCodeBench's, the authors', MBPP's."""


@dataclass(frozen=True, slots=True)
class JudgedProblem:
    """A problem and its judged programs.

    The id is unique in its source, and `messages` are the prompt. `record` is the problem in the schema of
    `cobalt.problems.problem`; None: it is not written.
    """

    id: str
    messages: Sequence[Message]
    candidates: Sequence[Candidate]
    record: Mapping[str, Any] | None = None


class GroupWriter:
    """Makes the groups of a source, counts what becomes of its problems and programs, and writes the files.

    Attributes:
        problems, programs: Counts by what became of them, with the first ids that were left out.
        groups: Counts by file and by what the groups are.
    """

    def __init__(self, settings: GroupSettings, source: str) -> None:
        """Load what measures lengths, if there is a limit; `source` names the data set in the groups.

        Raises:
            UserError: there is no such policy, or its tokenizer has no chat template or no token that ends a response.
        """
        self.problems, self.programs = Tally(), Tally()
        self.groups: Counter[str] = Counter()
        self._settings, self._source = settings, source
        self._counter: PromptTokenCounter | None = None
        if settings.model_name is not None:
            self._counter = PromptTokenCounter(settings.model_name, template_arguments(settings.chat_template_thinking))
            self._counter.check_end()

    def arguments(self, stage: str, prompts: Mapping[str, str] | str) -> dict[str, Any]:
        """Arguments that decide the groups, for the manifests; `prompts` are digests, or the source of the prompts."""
        settings, limited = self._settings, self._counter is not None
        return {
            "stage": stage,
            "prompts": prompts if isinstance(prompts, str) else dict(prompts),
            "rewards": asdict(settings.rewards),
            "tokenizer": None if self._counter is None else self._counter.fingerprint,
            "max_tokens": settings.max_tokens if limited else None,
            "chat_template_thinking": settings.chat_template_thinking if limited else None,
            **{name: getattr(settings, name) for name in _DECIDING},
            "max_groups": None,  # the rule in the words of the manifests: as many as the programs make
        }

    def summary(self) -> Summary:
        """The counts for a manifest and a table."""
        counts = {"problems": dict(self.problems), "programs": dict(self.programs), "groups": dict(+self.groups)}
        return with_first(counts, self.problems, self.programs)

    def write(self, result: Whole, problems: Iterable[JudgedProblem], splits: Mapping[str, str]) -> None:
        """Make the groups of each problem, and write them into the file of its split.

        Raises:
            UserError: a file cannot be written, or no group is left for one of them.
        """
        results = self._settings.results
        for problem in problems:
            groups = self._groups(problem)
            if not groups:
                continue
            path = results[0].with_stem(splits[problem.id])
            self.problems[f"in {path.name}"] += 1
            self.groups[f"in {path.name}"] += len(groups)
            for group in groups:
                self.groups[EQUAL_REWARDS] += len({one.reward for one in group.responses}) == 1
                self.groups[NONE_ACCEPTED] += all(one.status is not Status.ACCEPTED for one in group.responses)
            result.write(map(asdict, groups), path)
            if problem.record is not None:
                result.write([problem.record], results[-1])
        for path in results[:-1]:
            if not self.groups[f"in {path.name}"]:
                counts = f"problems: {tally(self.problems)}; programs: {tally(self.programs)}"
                raise UserError(
                    f"no group is left for {path.name} ({counts}): give more programs, a smaller --group_size,"
                    " another --validation_share or another --seed"
                )

    def _groups(self, problem: JudgedProblem) -> list[OfflineGroup]:
        """The groups of a problem; what becomes of it and its programs is counted."""
        fits = None
        if self._counter is not None:
            alone = self._counter.count([problem.messages])[0]
            if alone >= self._settings.max_tokens:
                self.problems.leave_out(LONG_PROMPT, problem.id)
                self.programs[LONG_PROMPT] += len(problem.candidates)
                return []
            fits = partial(self._fits, self._counter, problem.messages, alone)
        grouped, became = make_groups(problem.id, problem.candidates, self._settings, fits)
        for what, number in became.items():
            if what.startswith("dropped"):
                self.programs.leave_out(what, problem.id, number)
            else:
                self.programs[what] += number
        if not grouped:
            self.problems.leave_out(NO_GROUP, problem.id)
        messages, contrast = tuple(problem.messages), self._settings.contrast
        return [
            OfflineGroup(f"{problem.id}/{number}", problem.id, self._source, messages, responses, contrast)
            for number, responses in enumerate(grouped)
        ]

    def _fits(
        self, counter: PromptTokenCounter, messages: Sequence[Message], alone: int, candidates: Sequence[Candidate]
    ) -> list[bool]:
        """Whether each response fits after the prompt, which has `alone` tokens, and its own context."""
        contexts = [one.response.context for one in candidates]
        longer = iter(counter.count([[*messages, *context] for context in contexts if context]))
        prompts = [next(longer) if context else alone for context in contexts]
        responses = counter.count_responses([one.response.text for one in candidates])
        return [sum(tokens) <= self._settings.max_tokens for tokens in zip(prompts, responses, strict=True)]


def groups_made(summary: Summary, source: str, folder: Path) -> Outcome:
    """The outcome of a stage that made groups for offline training."""
    return made(summary, source, folder, f"cobalt train offline_rl --data_dir {quoted(folder)} --model MODEL -o RUN")


def split_problems(settings: GroupSettings, statements: Mapping[str, str]) -> dict[str, str]:
    """The split of each problem, in their order; without those whose statements resemble one of the evaluation files.

    Problems whose statements are equal or similar, directly or by way of others, are in the same split. It is drawn
    from the seed and the first of their ids.

    Raises:
        UserError: an evaluation file cannot be read or holds no problem, or a record of it has no statement.
    """
    firsts: dict[str, str] = {}  # for each distinct statement the first problem that has it
    own = {name: letters(statements[name]) for name in sorted(statements)}
    for name, text in own.items():
        firsts.setdefault(text, name)
    evaluated = {letters(text): None for path in settings.evaluation_files for text in _evaluation_statements(path)}
    texts = [*firsts, *(text for text in evaluated if text not in firsts)]
    dropped = evaluated.keys() & firsts.keys()
    leader = list(range(len(firsts)))  # for each text the first of those like it
    for first, second in similar_pairs(texts, settings.similarity):
        if second < len(firsts):
            one, other = sorted((leader[first], leader[second]))
            leader = [one if index == other else index for index in leader] if one != other else leader
        elif first < len(firsts):
            dropped.add(texts[first])
    split = {}
    for index, text in enumerate(firsts):
        drawn = hashlib.sha256(f"{settings.seed} {firsts[texts[leader[index]]]}".encode()).digest()
        share = int.from_bytes(drawn[:8], "big") / 2**64
        split[text] = VALIDATION if share < settings.validation_share else TRAIN
    return {name: split[own[name]] for name in statements if own[name] not in dropped}


def _evaluation_statements(path: Path) -> Iterator[str]:
    where = None
    for where, record in read_rows(path):
        statement = next((record[name] for name in _QUESTION_FIELDS if isinstance(record.get(name), str)), None)
        if statement is None:
            raise UserError(f"{path}, {where}: none of the fields {', '.join(_QUESTION_FIELDS)} is a string")
        yield statement
    if where is None:
        raise UserError(f"{path}: the evaluation file holds no problem")
