"""`python -m cobalt.report.viewer RUN -o view.html`: flags in, one call of `write_viewer`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from cobalt.cli import run_script


@dataclass(frozen=True)
class Arguments:
    """Make one HTML file that shows every trajectory of an evaluated run; it opens from disk, without a server."""

    run: tyro.conf.Positional[Path]
    """Folder that scripts/multi_turn.sh wrote, or an evaluated file."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("view.html")
    """The HTML file to write."""
    hacking: Path | None = None
    """Hacking events of the run, from extract_turn_level_errors.py or run_llm_judge.py."""
    programs_only: bool = False
    """Show only the programs of responses, without thinking and explanations; the page gets smaller."""


def main(arguments: Arguments) -> int:
    """Write the page; the exit code."""
    from cobalt.report.viewer.page import write_viewer

    problems = write_viewer(
        arguments.run, arguments.output_file, hacking=arguments.hacking, programs_only=arguments.programs_only
    )
    size = arguments.output_file.stat().st_size / 2**20
    Console().print(
        f"{arguments.output_file}: {problems} problems, {size:.1f} MiB; open it in a browser", soft_wrap=True
    )
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
