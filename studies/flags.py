"""The flags that all studies share, and what their commands do with a study: list it or run it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from cobalt.stage.errors import UserError
from studies.plan import Study, is_done, step_records
from studies.run import run_study


@dataclass(frozen=True)
class _Flags:
    output_dir: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[OUTPUT_DIR]")] = None
    """Folder of the study. The default lies in runs/ and has the study's name."""
    list_steps: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Print the steps and which of them are done, and stop."""

    def carry_out(self, study: Study) -> int:
        """List the study, or run what is left of it; returns the exit code. Raises UserError: see `run_study`."""
        if not self.list_steps:
            return run_study(study, sys.stdout.write)
        Console().print(plan_table(study))
        return 0


@dataclass(frozen=True)
class StudyFlags(_Flags):
    """Flags of studies of one seed."""

    seed: Annotated[tyro.conf.Positional[int], tyro.conf.arg(metavar="[SEED]")] = 0
    """Decides the pocket world and the samples."""


@dataclass(frozen=True)
class SeedsFlags(_Flags):
    """Flags of studies of several seeds."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Each has a world, a seed model and samples of its own. Seeds can be added later."""

    @property
    def shared(self) -> tuple[str, ...]:
        """The flags that a study and its tables share. Raises UserError: see `check_seeds`."""
        return ("--seeds", *map(str, check_seeds(self.seeds)))


@dataclass(frozen=True)
class TablesFlags:
    """Flags of the tables of a study of several seeds."""

    study: tyro.conf.Positional[Path]
    """Folder of the study."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The markdown file; text outside its marks is kept. CSV files and plots are written into a folder of its name."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The seeds to show."""


def check_seeds(seeds: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds of a study of several, as given. Raises UserError if there is none, or one comes twice."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))}: give different seeds of 0 or more")
    return seeds


def plan_table(study: Study) -> Table:
    """The steps of a study in order, whether each is done, and how long its last successful run took."""
    records = step_records(study)
    table = Table(title=f"{study.name} in {study.folder}", title_justify="left")
    for column in ("step", "done", "min:s", "what it does"):
        table.add_column(column, no_wrap=column != "what it does")
    for step in study.steps:
        record = records.get(step.name)
        minutes, seconds = divmod(round(record["seconds"]) if record else 0, 60)
        done = "yes" if is_done(study, step, record) else "no"
        table.add_row(step.name, done, f"{minutes}:{seconds:02d}" if record else "", step.purpose)
    return table
