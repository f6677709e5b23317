"""The rows of offline training in the comparison on the pocket world (arXiv 2605.28409; `cobalt.studies.reproduce`).

Judged programs of three policies of different skill stand in for submissions: of the seed model, FT and GRPO-MT, on
the training problems. Two more rows train on the trajectories that Cobalt is trained on, with the rewards that were
recorded and without a new sample: on their first turns, and on all of their turns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cobalt.studies import pocket
from cobalt.studies.methods import (
    BASE,
    COBALT,
    FIRST_TURNS,
    FT,
    GROUPS_OF_8,
    GRPO_MT,
    NOT_BALANCED,
    OFFLINE_METHODS,
    PARTIAL,
    RLOO,
    RLOO_EXPONENTIAL,
    RLOO_GRPO,
    SFT,
    WITH_KL,
    Method,
    SeedFolders,
)
from cobalt.studies.plan import Step

WRITERS = (BASE, FT, GRPO_MT)
"""Whose programs are the submissions."""

RESPONSES = 64
"""Responses of a training step."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """A way to make groups.

    Attributes:
        slug: Of its folder.
        size: Responses of a group.
        flags: Of preproc/preproc_judged.py.
        trajectories: Whether the programs are those of Cobalt's trajectories, and not the submissions.
    """

    slug: str
    size: int = 4
    flags: tuple[str, ...] = ()
    trajectories: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    """How a row is trained."""

    groups: _Groups
    estimator: str
    settings: tuple[str, ...] = ()


_FOURS, _EIGHTS = _Groups("offline_groups"), _Groups("offline_groups_8", 8)
_ANY = _Groups("offline_groups_any", 4, ("--contrast", "any"))
# Four trajectories of a problem seldom have four different programs.
_FIRST = _Groups("offline_groups_first_turns", 2, (), trajectories=True)
_TURNS = ("--responses", "turns", "--rewards_from", "recorded")
_PARTIAL = _Groups("offline_groups_partial", 2, _TURNS, trajectories=True)

_RUNS = {
    SFT: _Run(_FOURS, "sft"),
    RLOO: _Run(_FOURS, "rloo"),
    RLOO_GRPO: _Run(_FOURS, "grpo"),
    RLOO_EXPONENTIAL: _Run(_FOURS, "exponential"),
    GROUPS_OF_8: _Run(_EIGHTS, "grpo"),
    NOT_BALANCED: _Run(_ANY, "grpo"),
    WITH_KL: _Run(_FOURS, "grpo", ("offline.kl=0.1",)),
    FIRST_TURNS: _Run(_FIRST, "grpo"),
    PARTIAL: _Run(_PARTIAL, "grpo"),
}


SAMPLED = (BASE, COBALT, *OFFLINE_METHODS)
"""The rows that pass@k is estimated for."""


def offline_steps(at: SeedFolders, *, submissions: int, steps: int) -> Iterator[Step]:
    """The steps of one seed up to the trained policies.

    Args:
        at: Where everything lies.
        submissions: Programs of each writer for each training problem.
        steps: Of each training run.
    """
    base, seed = at.model(BASE), at.seed
    for writer in WRITERS:
        yield pocket.first_programs(
            at.step(f"{writer.slug}_submissions"),
            f"Collect judged programs of {writer.name}, which stand in for submissions.",
            pocket.problems(at.world, "train"),
            at.submissions(writer),
            at.model(writer),
            seed,
            samples=submissions,
            temperature=1.0,
        )
    for groups in (_FOURS, _EIGHTS, _ANY, _FIRST, _PARTIAL):
        written = [at.submissions(writer) for writer in WRITERS]
        results = [pocket.evaluation_file(at.collection("cobalt"))] if groups.trajectories else written
        flags = ("--group_size", str(groups.size), *groups.flags)
        yield pocket.judged_groups(at.step(groups.slug), results, at.data(groups.slug), base, seed, *flags)
    for method in OFFLINE_METHODS:
        run = _RUNS[method]
        yield pocket.offline_training(
            at.step(f"{method.slug}_training"),
            f"Train offline, {steps} steps ({method.name}).",
            run.estimator,
            at.data(run.groups.slug),
            base,
            at.training(method.slug),
            steps,
            seed,
            f"data.train_batch_size={RESPONSES // run.groups.size}",
            *run.settings,
        )


def sample_steps(at: SeedFolders, method: Method, samples: int) -> Iterator[Step]:
    """Many first programs of a row for each test problem, and their pass@k."""
    folder: Path = at.samples(method)
    yield pocket.first_programs(
        at.step(f"{method.slug}_samples"),
        f"Sample {samples} first programs of {method.name} for each test problem.",
        pocket.problems(at.world, "test"),
        folder / "single_turn.jsonl",
        at.model(method),
        at.seed,
        samples=samples,
    )
    yield pocket.pass_at_k(
        at.step(f"{method.slug}_pass_at_k"), folder / "single_turn.jsonl", pocket.evaluation_file(folder)
    )
