"""`python -m cobalt.report RUN...`: tables and plots of evaluated runs. Flags in, one call of `write_report`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.markdown import Markdown

from cobalt.rollout.protocols import Ks
from cobalt.stage.cli import run_script
from cobalt.stage.run import Outcome


@dataclass(frozen=True)
class Arguments:
    """Make tables (markdown, CSV) and a plot (PNG, SVG) of evaluated runs; differences are to the first run."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders that scripts/multi_turn.sh wrote, or evaluated files; NAME=PATH names a run."""
    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report")
    """Folder of the report; its report.md has everything."""
    hacking: tuple[str, ...] = ()
    """Hacking events, as NAME=FILE, from extract_turn_level_errors.py or run_llm_judge.py."""
    allow: tuple[str, ...] = ()
    """Settings that may differ between the runs, such as generation.temperature; the report names them."""
    k: Ks = ()


def main(arguments: Arguments) -> Outcome:
    """Write the report; what is shown has its tables."""
    from cobalt.report.runs import named_paths, read_run
    from cobalt.report.write import write_report

    runs = [read_run(name, path) for name, path in named_paths(arguments.runs).items()]
    hacking = named_paths(arguments.hacking)
    report = write_report(runs, arguments.output_dir, hacking=hacking, allowed=arguments.allow, ks=arguments.k)
    text = re.sub(r"^!\[.*\n", "", report.read_text(encoding="utf-8"), flags=re.MULTILINE)  # a terminal shows no plots
    following = "cobalt view RUN -o view.html, to read the programs"
    return Outcome(tables=[Markdown(text)], wrote=f"{report}; tables and plots beside it", next=following)


if __name__ == "__main__":
    run_script(Arguments, main)
