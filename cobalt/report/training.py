"""`python -m cobalt.report.training RUN...`: reward and validation curves of training runs. Flags in, one plot out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError


@dataclass(frozen=True)
class Arguments:
    """Draw the mean reward of each step, and validation, of one or more training runs."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders of training runs (--output_dir of train_grpo_*.sh); NAME=PATH names one in the plot."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The plot: a PNG or SVG file."""


def main(arguments: Arguments) -> int:
    """Draw; the exit code."""
    from cobalt.report.curves import read_curves
    from cobalt.report.plots import check_plot_path, plot_training
    from cobalt.report.runs import named_paths

    if not arguments.runs:
        raise UserError("there is nothing to draw: name the folder of at least one training run")
    check_plot_path(arguments.output_file)
    runs = named_paths(arguments.runs)
    plot_training({name: read_curves(path) for name, path in runs.items()}, arguments.output_file)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
