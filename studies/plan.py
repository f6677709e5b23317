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

from cobalt.stage.manifest import file_digest
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
        closing: What to look at when the study is complete.
        root: The folder that commands run in. Relative paths of the study are relative to it.
        inputs: Files and folders that must be there before the study begins, made by another study.
        made_by: The command that makes them.
    """

    name: str
    folder: Path
    arguments: Mapping[str, Any]
    steps: tuple[Step, ...]
    closing: str
    root: Path = ROOT
    inputs: tuple[Path, ...] = ()
    made_by: str = ""

    @property
    def record_file(self) -> Path:
        """JSONL with a line for each successful run of a step: the step, its command, start, seconds and digests."""
        return self.root / self.folder / STEPS_FILE


def step_records(study: Study) -> dict[str, dict[str, Any]]:
    """The record of the last successful run of each step, by the step's name.

    Raises UserError if the file holds something else.
    """
    path = study.record_file
    return {record["step"]: record for record in read_records(path, unfinished=True)} if path.exists() else {}


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
