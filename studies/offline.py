"""Offline training compared with Cobalt on the pocket world (`python -m studies.offline`; arXiv 2605.28409).

It goes on from the comparison of `studies.reproduce`: the same seed models, evaluation and seeds. For each seed,
judged programs are put into groups, each row of `studies.offline_methods` is trained on them, and all rows write
many first programs for pass@k and are evaluated over eight rounds of feedback. `studies.offline_results` makes
the tables.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.report.curves import METRICS
from cobalt.report.runs import EVALUATION
from cobalt.stage.cli import run_script
from cobalt.training.configuration import path_overrides
from studies.flags import SeedsFlags
from studies.lines import Lines, problems
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
    Groups,
    OfflineFolders,
    OfflineMethod,
    Row,
    folders_of,
)
from studies.plan import Step, Study


def _steps(at: OfflineFolders) -> list[Step]:
    """The plan of one seed, in order."""
    lines = Lines(at.own.seed, inputs=_inputs(at), prefix=at.own.step(""))
    train = problems(at.own.world, "train")
    for writer in WRITERS:
        purpose = f"Collect judged programs of {writer.name}, which stand in for submissions."
        # Above 0.6 sampling is without a nucleus.
        flags = f"-n {at.scale.submissions} --temperature 1 --top_p 1"
        lines.sample(f"{writer.slug}_submissions", purpose, train, at.submissions(writer), at.model(writer), flags)
    for groups in dict.fromkeys((VALIDATION, *(method.groups for method in OFFLINE_METHODS))):
        _add_groups(lines, at, groups)
    for method in OFFLINE_METHODS:
        _add_training(lines, at, method)
    for moved in MOVED:
        purpose = f"Estimate how far {moved.name} has moved from the seed model."
        line = "python -m studies.divergence --start {base} --model {moved} --groups {groups} --output_file {file}"
        values: dict[str, Any] = {"base": at.model(BASE), "moved": at.model(moved), "groups": at.validation}
        lines.add(f"{moved.slug}_divergence", purpose, line, at.divergence(moved), file=at.divergence(moved), **values)
    for row in ROWS:
        _add_evaluations(lines, at, row)
    return lines.steps


def _add_groups(lines: Lines, at: OfflineFolders, groups: Groups) -> None:
    results = [at.submissions(writer) for writer in groups.writers] or [at.trajectories]
    folder = at.own.data(groups.slug)
    files = (folder / "train.jsonl", *((folder / "validation.jsonl",) if groups.validation else ()))
    line = "python preproc/preproc_judged.py --input_files {results} --output_dir {folder} --model_name {base}"
    # Programs of this world are a few lines long, so that those with different mistakes are near duplicates.
    line += " --prompts pocket --near_duplicates 1.1 --max_tokens 1024 --seed {seed}"
    line += f" --group_size {groups.size} {groups.flags} {'' if groups.validation else '--validation_share 0'}"
    purpose, base = "Put judged programs into groups for offline training.", at.model(BASE)
    lines.add(groups.slug, purpose, line, *files, results=tuple(map(str, results)), folder=folder, base=base)


def _add_training(lines: Lines, at: OfflineFolders, method: OfflineMethod) -> None:
    """A training run, validated before it, at every quarter of its steps, and at its end."""
    steps, data = at.scale.steps, at.own.data(method.groups.slug)
    length = f"trainer.total_epochs={method.epochs or steps}"
    length += "" if method.epochs else f" trainer.total_training_steps={steps}"
    settings = f"{{validation}} {length} trainer.save_freq=-1 trainer.test_freq={max(1, steps // 4)}"
    settings += f" optim.lr={method.learning_rate} data.train_batch_size={at.scale.responses // method.groups.size}"
    validation = tuple(path_overrides({"data.val_files": at.validation}))
    name, run = f"{method.slug}_training", at.training(method)
    lines.train_offline(name, method.estimator, data, at.model(BASE), run, settings, validation=validation)


def _add_evaluations(lines: Lines, at: OfflineFolders, row: Row) -> None:
    test, single = problems(at.own.world, "test"), at.samples(row) / "single_turn.jsonl"
    purpose = f"Sample {SAMPLES} first programs of {row.name} for each test problem."
    lines.sample(f"{row.slug}_samples", purpose, test, single, at.model(row), f"-n {SAMPLES} --temperature 0.6")
    if row not in COMPARED:  # next to the other step that needs the same model, so that its engine is started once
        purpose = f"Evaluate {row.name} on the test problems."
        lines.write(f"{row.slug}_test", purpose, test, at.evaluation(row), at.model(row), "-n 1")
    line, file = "python eval_single_turn.py --input_file {single} --output_file {file}", at.samples(row) / EVALUATION
    purpose = "Estimate pass@k, and count different programs."
    lines.add(f"{row.slug}_pass_at_k", purpose, line, file, single=single, file=file)


def _inputs(at: OfflineFolders) -> Iterator[Path]:
    """What `studies.reproduce` has made: what the steps start from, and what the tables show besides."""
    yield from (problems(at.own.world, name) for name in ("train", "test"))
    yield from dict.fromkeys(at.model(row) for row in (*WRITERS, *COMPARED, *MOVED))
    yield at.trajectories
    yield from (at.evaluation(row) / EVALUATION for row in SHOWN if isinstance(row, Method))
    online = [row for row in (*WRITERS, *SHOWN) if isinstance(row, Method)]
    yield from dict.fromkeys(at.reproduced.training(slug) / METRICS for row in online for slug, _ in row.trained)


@dataclass(frozen=True)
class Arguments(SeedsFlags):
    """Compare offline training with Cobalt on the pocket world, from the models of a finished studies.reproduce.

    Takes about 38 minutes for each seed. Stop it whenever you like: the same command goes on where it stopped.
    """

    reproduced: Path | None = None
    """Folder of studies.reproduce, with the same seeds and the same --fast; runs/reproduce by default."""


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for. Raises UserError if the seeds are not different seeds of 0 or more."""
    folder, shared = arguments.folder("offline"), arguments.shared
    results = folder / "RESULTS.md"
    reproduced = arguments.reproduced or Path("runs") / f"reproduce{'_fast' if arguments.fast else ''}"
    seeds = [folders_of(folder, reproduced, seed, fast=arguments.fast) for seed in arguments.seeds]
    steps = [step for at in seeds for step in _steps(at)]
    inputs = tuple(path for at in seeds for path in _inputs(at))
    last = Lines(0, inputs=(*inputs, *(file for step in steps for file in step.files)))
    line = "python -m studies.offline_results {folder} --reproduced {reproduced} {flags} --output_file {results}"
    values: dict[str, Any] = {"folder": folder, "reproduced": reproduced, "flags": shared, "results": results}
    last.add("results", "Write the tables.", line, results, **values)
    return Study(
        "offline",
        folder,
        {"fast": arguments.fast, "reproduced": str(reproduced)},
        (*steps, *last.steps),
        arguments.again("python", "-m", "studies.offline", str(folder), "--reproduced", str(reproduced)),
        f"done: {results}",
        inputs=inputs,
        made_by=" ".join(["python -m studies.reproduce", str(reproduced), *shared]),
    )


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
