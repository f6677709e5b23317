"""The flags that all studies share, and what their commands do with a study: list it, check it or run it."""

import logging
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.stage.errors import UserError, naming
from cobalt.training.configuration import TrainingSettings
from studies.lines import Lines, Word
from studies.plan import Step, Study, is_done, run_study, step_records

logger = logging.getLogger(__name__)

_LONG = 10_000  # steps, after which every checkpoint that is kept is there


@dataclass(frozen=True)
class _Flags:
    output_dir: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[OUTPUT_DIR]")] = None
    """Folder of the study. The default lies in runs/ and has the study's name."""
    list_steps: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Print the steps and which of them are done, and stop."""
    dry_run: bool = False
    """Print the command of each step, check the configuration of each training run without a GPU, and stop."""

    def carry_out(self, study: Study) -> int:
        """List or check the study, or run what is left of it; returns the exit code.

        Raises UserError: see `dry_run` and `run_study`.
        """
        if self.list_steps:
            sys.stdout.write(listed(study))
        elif self.dry_run:
            dry_run(study, sys.stdout.write)
        else:
            return run_study(study, sys.stdout.write)
        return 0


@dataclass(frozen=True)
class StudyFlags(_Flags):
    """Flags of studies of one seed."""

    seed: Annotated[tyro.conf.Positional[int], tyro.conf.arg(metavar="[SEED]")] = 0
    """Decides the pocket world and the samples."""


@dataclass(frozen=True)
class TableFlags(_Flags):
    """Flags of studies whose last step writes tables."""

    page: Path | None = None
    """The page (markdown) to write the tables into, where text outside their marks is kept; by default one in the
    folder of the study. CSV files and plots are written into a folder of its name."""
    table: bool = False
    """Write the tables, and stop."""

    def finish(self, study: Study, write: Callable[[Path], object]) -> int:
        """Have the tables written into their page, or carry the study out; returns the exit code."""
        if not self.table:
            return self.carry_out(study)
        write(study.steps[-1].files[0])
        return 0


@dataclass(frozen=True)
class SeedsFlags(TableFlags):
    """Flags of studies of several seeds."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Each has a world, a seed model and samples of its own. Seeds can be added later."""

    def add_tables(self, lines: Lines, module: str, folder: Path, *flags: Word) -> Path:
        """Add the step that writes the tables; returns their page. Raises UserError if seeds are not different ones."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"--seeds {' '.join(map(str, self.seeds))}: give different seeds of 0 or more")
        page = self.page or folder / "RESULTS.md"
        named = ("--page", page) if self.page else ()
        line = (f"python -m {module}", folder, "--seeds", *map(str, self.seeds), *flags, *named, "--table")
        lines.add("results", "Write the tables.", *line, makes=[page])
        return page


def listed(study: Study) -> str:
    """The steps of a study in order, a line each: whether it is done, its last successful run's time, its purpose."""
    records = step_records(study)
    lines = [f"{study.name} in {study.folder}"]
    for step in study.steps:
        record = records.get(step.name)
        done, took = "done" if is_done(study, step, record) else "-", f"{record['seconds']:.0f} s" if record else ""
        lines.append(f"{done:5}{took:>8}  {step.name}: {step.purpose}")
    return "\n".join([*lines, ""])


def dry_run(study: Study, show: Callable[[str], object], sizes: str | None = None) -> None:
    """Show the command of each step, a line each, and check what the training steps would train.

    Nothing is started or written, and no GPU is needed. Rows and policies, which earlier steps make, are not checked:
    a training run does that before it begins.

    `sizes` is a folder or hub name of a model with the sizes of all policies, for the estimate of memory and disk. The
    estimate then is not a reason to refuse: the study will run elsewhere. None: existing policies are estimated.

    Raises UserError if a configuration is wrong; the message names the step.
    """
    for step in study.steps:
        show(f"# {step.name}: {step.purpose}\n{shlex.join([*services_command(step), *step.command])}\n")
    for step in study.steps:
        if step.training is not None:
            with naming(f"step {step.name}"):
                said = _check(study.root, step.training, sizes)
            logger.info("step %s: the configuration is right, for %s", step.name, said)


def services_command(step: Step) -> list[str]:
    """The words before a step's command that run it with the services that it needs."""
    if (services := step.services) is None:
        return []
    settings = [f"--{name}={value}" for name in ("engine", "judge") for value in getattr(services, name)]
    return ["python", "-m", "cobalt.services", f"--model={services.model}", *settings, "--"]


def _check(root: Path, training: TrainingSettings, sizes: str | None) -> str:
    """Check a configuration; returns the machine that it is for, and the attention that the run chooses."""
    from cobalt.training import launch
    from cobalt.training.checks import check_settings
    from cobalt.training.configuration import compose
    from cobalt.training.installed import choose_attention
    from cobalt.training.memory import check_memory

    model, output = str(root / training.model), root / training.output_dir
    run = replace(training, data_dir=root / training.data_dir, model=model, output_dir=output)
    config = compose(run)
    attention = choose_attention(config)
    check_settings(config)
    if sizes is not None:
        check_memory(compose(replace(run, model=sizes)), output, _LONG, force=True)
    elif Path(model, "config.json").is_file():
        check_memory(config, output, None)
    launch.dry_run(output, config)
    return f"{config.trainer.nnodes * config.trainer.n_gpus_per_node} x {config.trainer.device}; {attention}"
