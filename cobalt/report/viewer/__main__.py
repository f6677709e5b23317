"""`python -m cobalt.report.viewer RUN [OTHER_RUN] -o view.html`: flags in, one call of `write_viewer`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from cobalt.stage.cli import run_script


@dataclass(frozen=True)
class Arguments:
    """Make one HTML file that shows every trajectory of one or two runs; it needs no server."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """One run, or two on the same problems to show side by side: folders that scripts/multi_turn.sh wrote, or evaluated
    files; NAME=PATH names a run."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("view.html")
    """The HTML file to write."""
    hacking: tuple[str, ...] = ()
    """Hacking events of a run, as NAME=FILE; the page marks their turns."""


def main(arguments: Arguments) -> int:
    """Write the page; the exit code."""
    from cobalt.report.runs import named_paths
    from cobalt.report.viewer.page import write_viewer

    runs = named_paths(arguments.runs)
    problems = write_viewer(runs, arguments.output_file, hacking=named_paths(arguments.hacking))
    size = arguments.output_file.stat().st_size / 2**20
    Console().print(
        f"wrote {arguments.output_file} ({size:.1f} MiB; problems: {problems})\nnext: open it in a browser",
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
