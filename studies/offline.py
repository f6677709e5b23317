"""Offline training beside Cobalt on the pocket world (`python -m studies.offline`; arXiv 2605.28409).

It goes on from the comparison of `studies.reproduce`: the same seed models, evaluation and seeds. For each seed,
judged programs are put into groups, each row of `studies.offline_methods` is trained on them, and all rows write
many first programs for pass@k and are evaluated over eight rounds of feedback. `studies.offline_results` makes
the tables.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.stage.cli import run_script
from studies import pocket
from studies.flags import check_seeds, list_or_run
from studies.methods import BASE, Method
from studies.offline_methods import (
    COMPARED,
    MOVED,
    OFFLINE_METHODS,
    ROWS,
    SAMPLES,
    SHOWN,
    VALIDATION,
    WRITERS,
    OfflineFolders,
    OfflineMethod,
    Row,
    folders_of,
)
from studies.plan import Step, Study


def _steps(at: OfflineFolders) -> Iterator[Step]:
    """The plan of one seed, in order."""
    own, seed = at.own, at.own.seed
    for writer in WRITERS:
        yield pocket.first_programs(
            own.step(f"{writer.slug}_submissions"),
            f"Collect judged programs of {writer.name}, which stand in for submissions.",
            pocket.problems(own.world, "train"),
            at.submissions(writer),
            at.model(writer),
            seed,
            samples=at.scale.submissions,
            temperature=1.0,
        )
    for groups in dict.fromkeys((VALIDATION, *(method.groups for method in OFFLINE_METHODS))):
        results = [at.submissions(writer) for writer in groups.writers] or [at.trajectories]
        flags = ("--group_size", str(groups.size), *groups.flags)
        yield pocket.judged_groups(
            own.step(groups.slug),
            results,
            own.data(groups.slug),
            at.model(BASE),
            seed,
            *flags,
            validation=groups.validation,
        )
    for method in OFFLINE_METHODS:
        yield _training(at, method)
    for moved in MOVED:
        yield pocket.divergence(
            own.step(f"{moved.slug}_divergence"),
            moved.name,
            at.model(BASE),
            at.model(moved),
            at.validation,
            at.divergence(moved),
        )
    for row in ROWS:
        yield from _evaluations(at, row)


def _training(at: OfflineFolders, method: OfflineMethod) -> Step:
    return pocket.offline_training(
        at.own.step(f"{method.slug}_training"),
        f"Train offline ({method.name}).",
        method.estimator,
        at.own.data(method.groups.slug),
        at.validation,
        at.model(BASE),
        at.training(method),
        at.own.seed,
        f"optim.lr={method.learning_rate}",
        f"data.train_batch_size={at.scale.responses // method.groups.size}",
        steps=at.scale.steps,
        epochs=method.epochs,
    )


def _evaluations(at: OfflineFolders, row: Row) -> Iterator[Step]:
    own, problems = at.own, pocket.problems(at.own.world, "test")
    single = at.samples(row) / "single_turn.jsonl"
    yield pocket.first_programs(
        own.step(f"{row.slug}_samples"),
        f"Sample {SAMPLES} first programs of {row.name} for each test problem.",
        problems,
        single,
        at.model(row),
        own.seed,
        samples=SAMPLES,
    )
    if row not in COMPARED:  # beside the other step that needs the same model, so that its engine is started once
        purpose = f"Evaluate {row.name} on the test problems."
        run = at.evaluation(row)
        yield pocket.trajectories(
            own.step(f"{row.slug}_test"), purpose, problems, run, at.model(row), own.seed, samples=1
        )
    yield pocket.pass_at_k(own.step(f"{row.slug}_pass_at_k"), single, pocket.evaluation_file(at.samples(row)))


def _given(at: OfflineFolders) -> Iterator[Path]:
    """What `studies.reproduce` has made: what the steps start from, and what the tables show beside them."""
    yield from (pocket.problems(at.own.world, name) for name in ("train", "test"))
    yield from dict.fromkeys(at.model(row) for row in (*WRITERS, *COMPARED, *MOVED))
    yield at.trajectories
    yield from (pocket.evaluation_file(at.evaluation(row)) for row in SHOWN if isinstance(row, Method))
    online = [row for row in (*WRITERS, *SHOWN) if isinstance(row, Method)]
    yield from dict.fromkeys(
        pocket.metrics_file(at.reproduced.training(slug)) for row in online for slug, _ in row.trained
    )


@dataclass(frozen=True)
class Arguments:
    """Compare offline training with Cobalt on the pocket world, from the models of a finished studies.reproduce.

    Takes about 38 minutes for each seed. Stop it whenever you like: the same command goes on where it stopped.
    """

    output_dir: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[OUTPUT_DIR]")] = None
    """Folder of the study; runs/offline by default."""
    reproduced: Path | None = None
    """Folder of studies.reproduce; runs/reproduce by default."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of that study. Seeds can be added later."""
    fast: bool = False
    """That study is one of --fast; this one is as small."""
    results: Path | None = None
    """The file of tables to write; RESULTS.md in the folder of the study by default."""
    list_steps: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Print the steps and which of them are done, and stop."""


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for. Raises UserError if the seeds are not different seeds of 0 or more."""
    seeds = check_seeds(arguments.seeds)
    small = "_fast" if arguments.fast else ""
    folder = arguments.output_dir or Path("runs") / f"offline{small}"
    reproduced = arguments.reproduced or Path("runs") / f"reproduce{small}"
    results = arguments.results or folder / "RESULTS.md"
    all_seeds = [folders_of(folder, reproduced, seed, fast=arguments.fast) for seed in seeds]
    shared = ["--seeds", *map(str, seeds), *(["--fast"] if arguments.fast else [])]
    flags = ["--reproduced", str(reproduced), *shared]
    tables = Step(
        "results",
        "Write the tables.",
        ("python", "-m", "studies.offline_results", str(folder), *flags, "--output_file", str(results)),
        files=(results,),
        needs=tuple(
            pocket.evaluation_file(part)
            for at in all_seeds
            for part in (*map(at.samples, ROWS), *map(at.evaluation, SHOWN))
        )
        + tuple(at.divergence(row) for at in all_seeds for row in MOVED),
    )
    again = ["python", "-m", "studies.offline", str(folder), *flags]
    if arguments.results:
        again += ["--results", str(results)]
    make_given = ["python", "-m", "studies.reproduce", str(reproduced), *shared]
    return Study(
        "offline",
        folder,
        {"fast": arguments.fast, "reproduced": str(reproduced)},
        (*(step for at in all_seeds for step in _steps(at)), tables),
        shlex.join(again),
        f"done: {results}",
        given=tuple(path for at in all_seeds for path in _given(at)),
        given_by=shlex.join(make_given),
    )


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: list_or_run(study(arguments), list_only=arguments.list_steps))
