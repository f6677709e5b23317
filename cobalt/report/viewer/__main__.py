"""`python -m cobalt.report.viewer RUN [OTHER_RUN] -o view.html`: flags in, one call of `write_viewer`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.stage.cli import run_script
from cobalt.stage.run import Outcome


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


def main(arguments: Arguments) -> Outcome:
    """Write the page."""
    from cobalt.report.runs import named_paths
    from cobalt.report.viewer.page import write_viewer

    page = arguments.output_file
    problems = write_viewer(named_paths(arguments.runs), page, hacking=named_paths(arguments.hacking))
    size = f"{page.stat().st_size / 2**20:.1f} MiB"
    return Outcome(wrote=f"{page} ({size}; problems: {problems})", next="open it in a browser")


if __name__ == "__main__":
    run_script(Arguments, main)
