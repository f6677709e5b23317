"""Choose programs of a problem and put them into groups: with contrast, or at random.

Every program ends in exactly one count. The order is seeded: all are shuffled, and the first that fit are taken.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cobalt.datasets.offline.groups import OfflineResponse, Status
from cobalt.datasets.offline.settings import GroupSettings
from cobalt.datasets.offline.similarity import NearDuplicates, normalised_source
from cobalt.episode import Message, fence_around, program_of

_CHUNK = 32  # responses measured at a time; more would measure many that are not needed

# What becomes of a program, in the order in which it is decided; the keys of a run's counts.
DUPLICATE = "dropped: exact duplicate"
CONTRADICTED = "dropped: the same program has different statuses"
NO_CONTRAST = "dropped: of a problem without contrast"
TOO_LONG = "dropped: over max_tokens"
NEAR_DUPLICATE = "dropped: near duplicate"
UNWRITABLE = "dropped: not writable as a fenced block"
NOT_NEEDED = "not used: beyond the most that groups need"
LEFT_OVER = "not used: left over"
USED = "in groups"

Fits = Callable[[Sequence["Candidate"]], Sequence[bool]]
"""Which of some programs have responses short enough to follow the prompt and their contexts."""
Refuse = Callable[["Candidate"], str | None]
"""Why a program is left out after all, as a key for the counts; None if it is not."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A judged program that may get into a group.

    Attributes:
        program: "" for a response without one.
        status, reward, context: See `OfflineResponse`.
        origin: See there; unique among the candidates of its problem.
        text: The response as it was written; None: the program alone, in a fenced block.
    """

    program: str
    status: Status
    reward: float
    origin: str
    text: str | None = None
    context: tuple[Message, ...] = ()

    @property
    def response(self) -> str:
        """The text that a policy is trained to write."""
        return fenced(self.program) if self.text is None else self.text


def plain(source: str) -> str:
    """A recorded program with plain line ends, and without white space at its end."""
    return source.replace("\r\n", "\n").rstrip()


def fenced(program: str) -> str:
    """A response that holds the program alone: one fenced block, whose fence the program does not contain."""
    fence = fence_around(program)
    return f"{fence}python\n{program}\n{fence}"


def make_groups(
    problem_id: str,
    candidates: Sequence[Candidate],
    settings: GroupSettings,
    fits: Fits | None = None,
    refuse: Refuse | None = None,
) -> tuple[list[tuple[OfflineResponse, ...]], Counter[str]]:
    """Groups of one problem's programs, each program in at most one, and what became of each candidate.

    A group has responses of one turn. With the contrast "required" it gets one accepted program and one that is not,
    and the rest is drawn from what is left of both kinds. Near duplicates are looked for among the accepted and among
    the others, not between the two: a wrong program that resembles a right one is the contrast that training wants.

    Args:
        problem_id: Decides the seeded choice, with the settings' seed.
        candidates: The problem's programs, in an order that does not change from run to run.
        settings: Sizes, thresholds and seed.
        fits: None: there is no limit of length.
        refuse: Called only for the programs that would be taken, and for contradicting copies.
    """
    chooser = _Chooser(settings, fits, refuse)
    turns: defaultdict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        turns[len(candidate.context) // 2].append(candidate)
    groups: list[tuple[OfflineResponse, ...]] = []
    for turn, of_turn in sorted(turns.items()):
        rng = random.Random(f"{settings.seed} {problem_id}{f' turn {turn}' if turn else ''}")
        groups += chooser.groups(of_turn, rng)
    return groups, chooser.counts


class _Chooser:
    def __init__(self, settings: GroupSettings, fits: Fits | None, refuse: Refuse | None) -> None:
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._fits = fits or (lambda candidates: [True] * len(candidates))
        self._refuse = refuse or (lambda _: None)

    def groups(self, candidates: Sequence[Candidate], rng: random.Random) -> list[tuple[OfflineResponse, ...]]:
        """The groups of the programs of one turn."""
        settings, counts = self._settings, self.counts
        distinct = self._without_duplicates(candidates)
        accepted = [candidate for candidate in distinct if candidate.status is Status.ACCEPTED]
        others = [candidate for candidate in distinct if candidate.status is not Status.ACCEPTED]
        balanced = settings.contrast == "required"
        if balanced and not (accepted and others):
            counts[NO_CONTRAST] += len(distinct)
            return []
        rng.shuffle(accepted)
        rng.shuffle(others)
        accepted = self._take(accepted, settings.max_accepted if balanced else len(accepted))
        # With contrast, more would be left over: each group needs an accepted one.
        others = self._take(others, len(accepted) * (settings.group_size - 1) if balanced else len(others))
        groups = _deal(accepted, others, settings, rng)
        if balanced and not groups:
            counts[NO_CONTRAST] += len(accepted) + len(others)
            return []
        used = len(groups) * settings.group_size
        counts[USED] += used
        counts[LEFT_OVER] += len(accepted) + len(others) - used
        return [
            tuple(OfflineResponse(one.response, one.status, one.reward, one.origin, one.context) for one in group)
            for group in groups
        ]

    def _without_duplicates(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The first of each program; none of a program whose copies, without refused ones, have different statuses."""
        copies: defaultdict[tuple[str, ...], list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            # Of responses as they were written, the whole text is trained on, so it is what is compared.
            text = normalised_source(candidate.program) if candidate.text is None else candidate.text
            copies[*(message["content"] for message in candidate.context), text].append(candidate)
        distinct = []
        for same in copies.values():
            if _contradict(same):
                reasons = [self._refuse(candidate) for candidate in same]
                self.counts.update(reason for reason in reasons if reason is not None)
                same = [candidate for candidate, reason in zip(same, reasons, strict=True) if reason is None]
            if _contradict(same):
                self.counts[CONTRADICTED] += len(same)
            elif same:
                self.counts[DUPLICATE] += len(same) - 1
                distinct.append(same[0])
        return distinct

    def _take(self, candidates: Sequence[Candidate], most: int) -> list[Candidate]:
        """The first candidates that are short enough, new and not refused; the rest is counted."""
        taken: list[Candidate] = []
        seen = NearDuplicates(self._settings.near_duplicates)
        chunks = (candidates[begin : begin + _CHUNK] for begin in range(0, len(candidates), _CHUNK))
        measured = (pair for chunk in chunks for pair in zip(chunk, self._fits(chunk), strict=True))
        for index, (candidate, is_short) in enumerate(measured):
            contents = [message["content"] for message in candidate.context]
            sketch = seen.sketch("\n".join([*contents, candidate.text or candidate.program]))
            if len(taken) == most:
                self.counts[NOT_NEEDED] += len(candidates) - index
                break
            if not is_short:
                self.counts[TOO_LONG] += 1
            elif seen.resembles(sketch):
                self.counts[NEAR_DUPLICATE] += 1
            elif candidate.text is None and program_of(candidate.response) != candidate.program:
                self.counts[UNWRITABLE] += 1  # the judge would read another program in the response
            elif (reason := self._refuse(candidate)) is not None:
                self.counts[reason] += 1
            else:
                taken.append(candidate)
                seen.remember(sketch)
        return taken


def _contradict(same: Sequence[Candidate]) -> bool:
    return len({candidate.status for candidate in same}) > 1


def _deal(
    accepted: Sequence[Candidate], others: Sequence[Candidate], settings: GroupSettings, rng: random.Random
) -> list[list[Candidate]]:
    """As many groups as the programs make, in which the index of a program says nothing about it."""
    balanced = settings.contrast == "required"
    number = (len(accepted) + len(others)) // settings.group_size
    number = min(len(accepted), len(others), number) if balanced else number
    dealt = number if balanced else 0
    rest = [*accepted[dealt:], *others[dealt:]]
    rng.shuffle(rest)
    more = settings.group_size - 2 if balanced else settings.group_size
    groups = [rest[index * more : (index + 1) * more] for index in range(number)]
    if balanced:
        for group, *pair in zip(groups, accepted, others, strict=False):
            group[:0] = pair
            rng.shuffle(group)
    return groups
