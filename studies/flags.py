"""The flags that all studies share, and what their commands do with a study: list it or run it."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from cobalt.stage.errors import UserError
from studies.plan import Study, is_done, open_study, step_records
from studies.run import run_study


@dataclass(frozen=True)
class StudyFlags:
    """Flags of every study."""

    output_dir: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[OUTPUT_DIR]")] = None
    """Folder of the study. The default lies in runs/ and has the study's name."""
    seed: Annotated[tyro.conf.Positional[int], tyro.conf.arg(metavar="[SEED]")] = 0
    """Decides the pocket world and the samples."""
    list_steps: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Print the steps and which of them are done, and stop."""

    def carry_out(self, study: Study) -> int:
        """List the study, or run what is left of it; returns the exit code.

        Raises UserError if the seed is negative, or the folder is another study's; see also `run_study`.
        """
        if self.seed < 0:
            raise UserError(f"the seed is {self.seed}: it must be 0 or more")
        return _list_or_run(study, list_only=self.list_steps)


def check_seeds(seeds: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds of a study of several, as given.

    Raises UserError if there is none, one is negative, or one comes twice.
    """
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))}: give different seeds of 0 or more")
    return seeds


@dataclass(frozen=True)
class SeedsFlags:
    """Flags of studies of several seeds."""

    output_dir: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[OUTPUT_DIR]")] = None
    """Folder of the study. The default lies in runs/ and has the study's name."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each has a world, a seed model and samples of its own. Seeds can be added later."""
    fast: bool = False
    """Run every step with a weaker seed model and too few problems and training steps to learn anything."""
    list_steps: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Print the steps and which of them are done, and stop."""

    def folder(self, name: str) -> Path:
        """The folder of the study."""
        return self.output_dir or Path("runs") / f"{name}{'_fast' if self.fast else ''}"

    @property
    def shared(self) -> tuple[str, ...]:
        """The flags that a study and its tables share. Raises UserError: see `check_seeds`."""
        return ("--seeds", *map(str, check_seeds(self.seeds)), *(("--fast",) if self.fast else ()))

    def again(self, *command: str) -> str:
        """The command line that goes on with the study."""
        return shlex.join([*command, *self.shared])

    def carry_out(self, study: Study) -> int:
        """List the study, or run what is left of it; returns the exit code. Raises UserError: see `run_study`."""
        return _list_or_run(study, list_only=self.list_steps)


def _list_or_run(study: Study, *, list_only: bool) -> int:
    """Print the steps of a study, or run what is left of it; returns the exit code.

    Raises UserError if the folder is another study's; see also `run_study`.
    """
    if not list_only:
        return run_study(study, sys.stdout.write)
    open_study(study, only_look=True)
    Console().print(plan_table(study))
    return 0


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
