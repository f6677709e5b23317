"""What a study is: named steps in an order, the files that they need and make, and which of them are done.

A step is done when the record of its last successful run names the same command, and the files that it needs and makes
have the contents that they had then. So a study that was stopped continues where it stopped, and a step whose input has
changed, or whose result was removed, runs again. The commands themselves resume and refuse other settings
(`cobalt.stage.manifest`). Nothing is run or written here.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cobalt.stage.errors import UserError
from cobalt.stage.manifest import file_digest, open_manifest
from cobalt.stage.records import read_records
from cobalt.training.configuration import TrainingSettings

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: the folder that commands run in."""

STEPS_FILE = "steps.jsonl"
"""In a study's folder: a line for each successful run of a step."""


@dataclass(frozen=True, slots=True)
class Services:
    """What must be running while a step runs: a judge and an engine.

    Attributes:
        model: Folder of the engine's model.
        engine: Settings of the engine, each as key=value.
        judge: Settings of the judge.
    """

    model: Path
    engine: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of `python -m cobalt.services`."""
        settings = {"--engine": self.engine, "--judge": self.judge}
        more = (word for flag, values in settings.items() for value in values for word in (flag, value))
        return ("--model", str(self.model), *more)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a study.

    Attributes:
        name: Unique in the study; also the name of the step's log.
        purpose: What the step does, in a sentence.
        command: Program and arguments; `python` is the one that runs the study.
        files: Files and folders that the step makes.
        needs: Files and folders that it reads, made by earlier steps.
        services: The services that its command needs; None: none.
        shown: Whether the command's output is shown on the terminal, too.
        training: What the command trains, if it trains by GRPO, so that a dry run can check it.
    """

    name: str
    purpose: str
    command: tuple[str, ...]
    files: tuple[Path, ...]
    needs: tuple[Path, ...] = ()
    services: Services | None = None
    shown: bool = False
    training: TrainingSettings | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """A study: its folder and its plan.

    Attributes:
        name: For messages.
        folder: Where results, logs and the record of the steps lie.
        arguments: What decides the results, JSON-able; a folder that was begun with other arguments is refused.
        steps: The plan, in the order in which the steps are started.
        command: What a user runs to go on with the study.
        closing: What to look at when the study is complete.
        root: The folder that commands run in. Relative paths of the study are relative to it.
        inputs: Files and folders that must be there before the study begins, made by another study.
        made_by: The command that makes them.

    Raises:
        ValueError: the plan contradicts itself: two steps have one name or make one file, or a step needs what is
            neither an input nor made by then.
    """

    name: str
    folder: Path
    arguments: Mapping[str, Any]
    steps: tuple[Step, ...]
    command: str
    closing: str
    root: Path = ROOT
    inputs: tuple[Path, ...] = ()
    made_by: str = ""

    def __post_init__(self) -> None:
        names = [step.name for step in self.steps]
        if len(set(names)) < len(names):
            raise ValueError(f"two steps have one name: {names}")
        made = set(self.inputs)
        for step in self.steps:
            if not made.issuperset(step.needs):
                raise ValueError(f"step {step.name!r} needs what no step has made by then")
            if not made.isdisjoint(step.files):
                raise ValueError(f"step {step.name!r} makes what an earlier step has made")
            made.update(step.files)

    @property
    def record_file(self) -> Path:
        """JSONL with a line for each successful run of a step: the step, its command, start, seconds and digests."""
        return self.root / self.folder / STEPS_FILE

    def log_file(self, step: Step) -> Path:
        """The output of the step's command, over all its runs."""
        return self.root / self.folder / "logs" / f"{step.name}.log"


class _StepRecord(BaseModel):
    """The fields of a step's record that are read; others are passed over."""

    model_config = ConfigDict(strict=True)

    step: str
    command: list[str]
    seconds: float = Field(ge=0, allow_inf_nan=False)
    needs: dict[str, str | None]
    files: dict[str, str | None]


def check_inputs(study: Study) -> None:
    """Check that everything is there that the study takes from another one.

    Raises:
        UserError: a file or folder is missing; the message has the command that makes it.
    """
    for path in study.inputs:
        if not (study.root / path).exists():
            raise UserError(f"{path} is not there: run {study.made_by} first")


def open_study(study: Study, *, only_look: bool = False) -> None:
    """Write the study's manifest, or check that a study that was begun continues with the same arguments.

    Args:
        study: The study.
        only_look: Write nothing.

    Raises:
        UserError: the folder holds another study, or this one with other arguments.
    """
    begun = study.record_file.exists() and study.record_file.stat().st_size > 0
    if only_look and not begun:
        return
    try:
        open_manifest(study.record_file, {"study": study.name, **study.arguments}, complete=only_look)
    except UserError as error:
        raise UserError(f"{study.folder} cannot be this study's folder, name another as OUTPUT_DIR: {error}") from None


def step_records(study: Study) -> dict[str, dict[str, Any]]:
    """The record of the last successful run of each step, by the step's name.

    Raises:
        UserError: the file holds something else.
    """
    path = study.record_file
    records = read_records(path, unfinished=True) if path.exists() else []
    for number, record in enumerate(records, 1):
        try:
            _StepRecord.model_validate(record)
        except ValidationError as error:
            raise UserError(
                f"{path}, line {number}: field {error.errors()[0]['loc'][0]!r} is not that of a step's record: move the"
                " file away, and the study runs every step again"
            ) from None
    return {record["step"]: record for record in records}


def is_done(study: Study, step: Step, record: Mapping[str, Any] | None) -> bool:
    """Whether a step need not run, by the record of its last successful run."""
    if record is None or record["command"] != list(step.command):
        return False
    return bool(record["needs"] == digests(study, step.needs) and record["files"] == digests(study, step.files))


def digests(study: Study, paths: Sequence[Path]) -> dict[str, str | None]:
    """The digest of each file or folder; None where there is nothing."""
    return {str(path): _digest(study.root / path) for path in paths}


def _digest(path: Path) -> str | None:
    """SHA-256 of a file, or of the names and contents of a folder's files."""
    if not path.is_dir():
        return file_digest(path) if path.exists() else None
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(path)} {file_digest(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
