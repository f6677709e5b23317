"""Write the groups of a source into files for training and validation, and count what became of problems and programs.

This is what the sources share: problems with statements that models will be evaluated on are left out, problems with
similar statements get into the same file, and prompts and responses over the limit of length are left out. Nothing is
judged here.
"""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from cobalt.datasets.offline.contrast import Candidate, Fits, Refuse, make_groups
from cobalt.datasets.offline.groups import OfflineGroup, Status
from cobalt.datasets.offline.settings import PROBLEMS, TRAIN, VALIDATION, GroupSettings
from cobalt.datasets.offline.similarity import letters, similar_pairs
from cobalt.episode import Message
from cobalt.episode.chat_template import template_arguments
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.stage.errors import UserError, tally
from cobalt.stage.records import encode_record
from cobalt.stage.rows import read_rows
from cobalt.stage.run import Outcome, Whole, quoted
from cobalt.stage.tally import Summary, Tally, with_first

# What becomes of a problem; keys of a run's counts.
READ = "read"
EVALUATED = "dropped: similar to an evaluation problem"
LONG_PROMPT = "dropped: the prompt leaves no room for a response"
NO_GROUP = "dropped: no accepted program, or no other, or too few in all"

# What groups are; keys of a run's counts besides the files.
EQUAL_REWARDS = "with equal rewards: no gradient"
NONE_ACCEPTED = "without an accepted response"

_DECIDING = (
    "group_size", "contrast", "max_accepted", "max_groups", "near_duplicates", "validation_share", "similarity", "seed",
)  # fmt: skip
"""Settings that decide the groups, besides those that are recorded in another form."""
_QUESTION_FIELDS = ("question", "question_content", "instruction", "text")
"""Where problem files have statements: this project's and TACO's, LiveCodeBench's, the authors', MBPP's."""


@dataclass(frozen=True, slots=True)
class JudgedProblem:
    """A problem and its judged programs.

    Attributes:
        id: Unique in its source.
        messages: The prompt.
        candidates: The programs.
        record: The problem in the schema of `cobalt.problems.problem`; None: it is not written.
        refuse: Why a program that would be used is left out after all.
    """

    id: str
    messages: Sequence[Message]
    candidates: Sequence[Candidate]
    record: Mapping[str, Any] | None = None
    refuse: Refuse | None = None


@dataclass(slots=True)
class Counts:
    """What a run counted: problems, programs and groups, each by what became of them."""

    problems: Tally = field(default_factory=partial(Tally, by_id=True))
    programs: Tally = field(default_factory=partial(Tally, by_id=True))
    groups: Counter[str] = field(default_factory=Counter)

    def summary(self) -> Summary:
        """The counts for a manifest and a table, each kind in the order in which it was first counted.

        With the first ids that were left out: of problems, and of programs or the problems that they belong to.
        """
        counts = {"problems": dict(self.problems), "programs": dict(self.programs), "groups": dict(+self.groups)}
        return with_first(counts, self.problems, self.programs)


def token_counter(settings: GroupSettings) -> PromptTokenCounter | None:
    """What measures prompts and responses; None if there is no limit of length.

    Raises:
        UserError: there is no such policy, or its tokenizer has no chat template or no token that ends a response.
    """
    if settings.model_name is None:
        return None
    counter = PromptTokenCounter(settings.model_name, template_arguments(settings.chat_template_thinking))
    counter.check_end()
    return counter


def deciding(
    settings: GroupSettings, stage: str, prompts: Mapping[str, str] | str, counter: PromptTokenCounter | None
) -> dict[str, Any]:
    """What decides the groups, for the manifests, besides the settings of a source.

    Args:
        settings: The settings of the stage.
        stage: Its name.
        prompts: The digests of the prompt set, or where the prompts are from.
        counter: What measures lengths.
    """
    return {
        "stage": stage,
        "prompts": prompts if isinstance(prompts, str) else dict(prompts),
        "rewards": asdict(settings.rewards),
        "tokenizer": None if counter is None else counter.fingerprint,
        "max_tokens": None if counter is None else settings.max_tokens,
        "chat_template_thinking": None if counter is None else settings.chat_template_thinking,
        **{name: getattr(settings, name) for name in _DECIDING},
    }


def groups_made(summary: Summary, source: str, folder: Path) -> Outcome:
    """The outcome of a stage that made groups for offline training."""
    return Outcome(
        summary=summary,
        title=f"{source}: {folder}",
        wrote=str(folder),
        next=f"cobalt train offline_rl --data_dir {quoted(folder)} --model MODEL -o RUN",
    )


def split_problems(settings: GroupSettings, statements: Mapping[str, str]) -> dict[str, str]:
    """The split of each problem; problems whose statements equal or resemble one of the evaluation files have none.

    Problems whose statements are equal or similar, directly or by way of others, are in the same split. It is drawn
    from the seed and the first of their ids. The problems are in the order of the statements.

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
    leader = list(range(len(firsts)))

    def lead(place: int) -> int:
        while leader[place] != place:
            place = leader[place]
        return place

    for first, second in similar_pairs(texts, settings.similarity):
        if second < len(firsts):
            one, other = sorted((lead(first), lead(second)))
            leader[other] = one
        elif first < len(firsts):
            dropped.add(texts[first])
    split = {text: _split(settings, firsts[texts[lead(place)]]) for place, text in enumerate(firsts)}
    return {name: split[own[name]] for name in statements if own[name] not in dropped}


def _split(settings: GroupSettings, name: str) -> str:
    drawn = hashlib.sha256(f"{settings.seed} {name}".encode()).digest()
    return VALIDATION if int.from_bytes(drawn[:8], "big") / 2**64 < settings.validation_share else TRAIN


def _evaluation_statements(path: Path) -> Iterable[str]:
    empty = True
    for place, record in read_rows(path):
        empty = False
        found = next((record[name] for name in _QUESTION_FIELDS if isinstance(record.get(name), str)), None)
        if found is None:
            raise UserError(f"{path}, {place}: none of the fields {', '.join(_QUESTION_FIELDS)} is a string")
        yield found
    if empty:
        raise UserError(f"{path}: the evaluation file holds no problem")


class _Parts:
    """The lines of a result, which come in the order in which problems are read and are written in another one.

    Meanwhile they lie in a temporary file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: dict[str, tuple[int, int]] = {}

    def add(self, problem: str, lines: bytes) -> None:
        """Keep the lines of a problem, which must be new."""
        self._places[problem] = (self._file.tell(), len(lines))
        self._file.write(lines)

    def lines(self, order: Iterable[str]) -> Iterator[bytes]:
        """The lines of the problems that have some."""
        for problem in order:
            if problem in self._places:
                offset, length = self._places[problem]
                self._file.seek(offset)
                yield self._file.read(length)


def write_groups(
    result: Whole,
    settings: GroupSettings,
    source: str,
    problems: Iterable[JudgedProblem],
    splits: Mapping[str, str],
    counter: PromptTokenCounter | None,
    counts: Counts,
) -> None:
    """Make the groups of each problem and write them when all problems are read.

    The problems may come in any order. In the files they have that of the splits.

    Args:
        result: The files of `settings.results`.
        settings: How groups are made.
        source: Name of the data set in the groups.
        problems: The problems, each with a split.
        splits: The split of each problem.
        counter: What measures lengths; None: there is no limit.
        counts: What became of the problems, the programs and the groups is added to it.

    Raises:
        UserError: a file cannot be written, or no group is left for one of them.
    """
    most = 0
    with ExitStack() as stack:
        parts = {
            path.stem: _Parts(stack.enter_context(tempfile.TemporaryFile(dir=settings.output_dir)))
            for path in settings.results
        }
        for problem in problems:
            fits, prompt_fits = _limit(settings, counter, problem.messages)
            if not prompt_fits:
                counts.problems.leave_out(LONG_PROMPT, problem.id)
                counts.programs[LONG_PROMPT] += len(problem.candidates)
                continue
            most = max(most, _most_of_a_turn(problem.candidates))
            made, became = make_groups(problem.id, problem.candidates, settings, fits, problem.refuse)
            for what, number in became.items():
                if what.startswith("dropped"):
                    counts.programs.leave_out(what, problem.id, number)
                else:
                    counts.programs[what] += number
            if not made:
                counts.problems.leave_out(NO_GROUP, problem.id)
                continue
            split = splits[problem.id]
            counts.problems[f"in {split}.jsonl"] += 1
            counts.groups[f"in {split}.jsonl"] += len(made)
            lines = []
            for number, responses in enumerate(made):
                identifier = f"{problem.id}/{number}"
                messages = tuple(problem.messages)
                group = OfflineGroup(identifier, problem.id, source, messages, responses, settings.contrast)
                lines.append(encode_record(group.to_record()))
                counts.groups[EQUAL_REWARDS] += len({one.reward for one in responses}) == 1
                counts.groups[NONE_ACCEPTED] += all(one.status is not Status.ACCEPTED for one in responses)
            parts[split].add(problem.id, b"".join(lines))
            if problem.record is not None:
                parts[PROBLEMS].add(problem.id, encode_record(problem.record))
        _check_splits(settings, parts, counts, most)
        for path in settings.results:
            result.write_lines(parts[path.stem].lines(splits), path)


def _most_of_a_turn(candidates: Sequence[Candidate]) -> int:
    """The most programs that groups of a problem can be drawn from: programs of one turn."""
    return max(Counter(len(candidate.context) for candidate in candidates).values(), default=0)


def _check_splits(settings: GroupSettings, names: Container[str], counts: Counts, most: int) -> None:
    """Raise if a file would have no group; `most` is the largest number of programs that a problem has at one turn."""
    empty = [name for name in (TRAIN, VALIDATION) if name in names and not counts.groups[f"in {name}.jsonl"]]
    if not empty:
        return
    what = f"no group is left for {empty[0]}.jsonl (problems: {tally(counts.problems)}"
    if counts.groups:
        share = "a smaller --validation_share" if empty[0] == TRAIN else "--validation_share 0, a larger one"
        raise UserError(f"{what}): give {share} or another --seed")
    why = f"; programs: {tally(counts.programs)})"
    if most:
        why += (
            f": a group takes {settings.group_size} different programs (group_size), and no problem has more than"
            f" {most}, copies included"
        )
    raise UserError(what + why)


def _limit(
    settings: GroupSettings, counter: PromptTokenCounter | None, messages: Sequence[Message]
) -> tuple[Fits | None, bool]:
    """Which responses fit after a prompt and their contexts, and whether the shortest would without a context."""
    if counter is None:
        return None, True
    alone = counter.count([messages])[0]

    def fits(candidates: Sequence[Candidate]) -> list[bool]:
        longer = iter(counter.count([[*messages, *one.context] for one in candidates if one.context]))
        prompts = [next(longer) if one.context else alone for one in candidates]
        responses = counter.count_responses([one.response for one in candidates])
        return [sum(tokens) <= settings.max_tokens for tokens in zip(prompts, responses, strict=True)]

    return fits, alone < settings.max_tokens
