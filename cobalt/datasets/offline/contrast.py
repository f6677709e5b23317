"""Choose programs of a problem and put them into groups: with contrast, or at random.

Every program ends in exactly one count. The order is seeded: all are shuffled, and the first that fit are taken.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cobalt.datasets.offline.groups import OfflineResponse, Status
from cobalt.datasets.offline.settings import GroupSettings
from cobalt.datasets.offline.similarity import NearDuplicates, normalised_source
from cobalt.episode import fence_around, program_of

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
"""Function that tells which of some programs have responses short enough to follow the prompt and their contexts."""


class Candidate(NamedTuple):
    """A judged response that may get into a group; `program` is all that it holds, None if it is as a model wrote it.

    Its origin is unique among the candidates of its problem.
    """

    response: OfflineResponse
    program: str | None = None


def bare(program: str, status: Status, reward: float, origin: str) -> Candidate:
    """A program without a response: it is put into a fenced block, whose fence it does not contain."""
    fence = fence_around(program)
    return Candidate(OfflineResponse(f"{fence}python\n{program}\n{fence}", status, reward, origin, ()), program)


def plain(source: str) -> str:
    """A recorded program with plain line ends, and without white space at its end."""
    return source.replace("\r\n", "\n").rstrip()


def make_groups(
    problem_id: str, candidates: Sequence[Candidate], settings: GroupSettings, fits: Fits | None = None
) -> tuple[list[tuple[OfflineResponse, ...]], Counter[str]]:
    """Groups of one problem's programs, each program in at most one, and what became of each candidate.

    A group has responses of one turn. With the contrast "required" it gets one accepted program and one that is not,
    and the rest is drawn from what is left of both kinds. Near duplicates are looked for among the accepted and among
    the others, not between the two: a wrong program that resembles a right one is the contrast that training wants.
    The seed, the problem and the order of the candidates decide the choice. Without `fits` no response is too long.
    """
    chooser = _Chooser(settings, fits)
    turns: defaultdict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        turns[len(candidate.response.context) // 2].append(candidate)
    groups: list[tuple[OfflineResponse, ...]] = []
    for turn, of_turn in sorted(turns.items()):
        rng = random.Random(f"{settings.seed} {problem_id}{f' turn {turn}' if turn else ''}")
        groups += chooser.groups(of_turn, rng)
    return groups, chooser.counts


class _Chooser:
    def __init__(self, settings: GroupSettings, fits: Fits | None) -> None:
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._fits = fits or (lambda candidates: [True] * len(candidates))

    def groups(self, candidates: Sequence[Candidate], rng: random.Random) -> list[tuple[OfflineResponse, ...]]:
        """The groups of the programs of one turn."""
        settings, counts = self._settings, self.counts
        distinct = self._without_duplicates(candidates)
        accepted = [candidate for candidate in distinct if candidate.response.status is Status.ACCEPTED]
        others = [candidate for candidate in distinct if candidate.response.status is not Status.ACCEPTED]
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
        used = len(groups) * settings.group_size
        counts[USED] += used
        counts[LEFT_OVER] += len(accepted) + len(others) - used
        return [tuple(candidate.response for candidate in group) for group in groups]

    def _without_duplicates(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The first of each program; none of a program whose copies have different statuses."""
        copies: defaultdict[tuple[str, ...], list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            response, program = candidate
            # Of responses as they were written, the whole text is trained on, so it is what is compared.
            text = response.text if program is None else normalised_source(program)
            copies[*(message["content"] for message in response.context), text].append(candidate)
        distinct = []
        for same in copies.values():
            if len({candidate.response.status for candidate in same}) > 1:
                self.counts[CONTRADICTED] += len(same)
            else:
                self.counts[DUPLICATE] += len(same) - 1
                distinct.append(same[0])
        return distinct

    def _take(self, candidates: Sequence[Candidate], most: int) -> list[Candidate]:
        """The first candidates that are short enough, writable and new; the rest is counted."""
        taken: list[Candidate] = []
        known = NearDuplicates(self._settings.near_duplicates)
        chunks = (candidates[begin : begin + _CHUNK] for begin in range(0, len(candidates), _CHUNK))
        measured = (pair for chunk in chunks for pair in zip(chunk, self._fits(chunk), strict=True))
        for index, (candidate, is_short) in enumerate(measured):
            if len(taken) == most:
                self.counts[NOT_NEEDED] += len(candidates) - index
                break
            response, program = candidate
            contents = [message["content"] for message in response.context]
            if not is_short:
                self.counts[TOO_LONG] += 1
            elif program is not None and program_of(response.text) != program:
                self.counts[UNWRITABLE] += 1  # the judge would read another program in the response
            elif not known.add("\n".join([*contents, response.text if program is None else program])):
                self.counts[NEAR_DUPLICATE] += 1
            else:
                taken.append(candidate)
        return taken


def _deal(
    accepted: Sequence[Candidate], others: Sequence[Candidate], settings: GroupSettings, rng: random.Random
) -> list[list[Candidate]]:
    """As many groups as the programs make, in which the index of a program says nothing about it."""
    number, size = (len(accepted) + len(others)) // settings.group_size, settings.group_size
    firsts: Sequence[tuple[Candidate, ...]] = [()] * number
    if settings.contrast == "required":
        firsts = list(zip(accepted, others, strict=False))[:number]
        accepted, others, size = accepted[len(firsts) :], others[len(firsts) :], size - 2
    rest = [*accepted, *others]
    rng.shuffle(rest)
    groups = [[*first, *rest[index * size : (index + 1) * size]] for index, first in enumerate(firsts)]
    for group in groups:
        rng.shuffle(group)
    return groups
