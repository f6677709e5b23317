"""Write a report: one markdown file with everything, and each table and plot as files of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cobalt.hacking.events import HackingEvent, read_events, tempted_turns
from cobalt.report.comparison import check_comparable
from cobalt.report.plots import plot_turns
from cobalt.report.run_tables import (
    differences_table,
    difficulty_table,
    hacking_table,
    protocols_table,
    turns_table,
    usage_table,
)
from cobalt.report.runs import Run
from cobalt.report.tables import Table, escape_markdown, to_csv, to_markdown
from cobalt.stage.atomic import replace_text
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import file_digest
from cobalt.stage.run import whole

_HEADINGS = {
    "pass_at_1": "Pass@1 by turn",
    "differences": "Differences",
    "protocols": "Other measures",
    "difficulty": "By difficulty",
    "usage": "Tokens and costs",
    "hacking": "Hacking events",
}


def write_report(
    runs: Sequence[Run],
    folder: Path,
    *,
    hacking: Mapping[str, Path] | None = None,
    allowed: Sequence[str] = (),
    ks: Sequence[int] = (),
) -> Path:
    """Compare runs, and write `report.md`, its tables (`.csv`) and its plot (`.png`, `.svg`) into `folder`.

    An existing report is replaced. Its manifest is `report.md.run.json` in the same folder.

    Args:
        runs: The runs; differences are to the first.
        folder: Folder to write to.
        hacking: Hacking events of each model, by the name to show; those with a run's name must be of that run.
        allowed: Settings that may differ between the runs.
        ks: The k of pass@k and of the best of k; empty: see `cobalt.rollout.protocols.protocol_figures`.

    Returns:
        The markdown file.

    Raises:
        UserError: nothing to compare, runs that cannot be compared, events that their run does not have, a file that
            cannot be written, or a `report.md` of somebody else.
    """
    if not runs:
        raise UserError("there is nothing to report: name at least one run, such as runs/quickstart/ft_cobalt")
    hacking = hacking or {}
    events = {name: read_events(path) for name, path in hacking.items()}
    differing = check_comparable(runs, allowed)
    for run in runs:
        _check_events(run, events.get(run.name, ()))
    differences = differences_table(runs) if len(runs) > 1 else None
    made = [turns_table(runs), differences, protocols_table(runs, ks), difficulty_table(runs), usage_table(runs)]
    tables = [table for table in made if table is not None]
    if events:
        tables.append(hacking_table(events, {name: tempted_turns(path) for name, path in hacking.items()}))
    arguments = {
        "stage": "report",
        "runs": {run.name: run.digest for run in runs},
        "hacking": {name: file_digest(path) for name, path in hacking.items()},
        "allow": list(allowed),
        "k": list(ks),
    }
    with whole(folder / "report.md", arguments, replaces=True) as report:
        for name in _HEADINGS:
            (folder / f"{name}.csv").unlink(missing_ok=True)
        for table in tables:
            replace_text(folder / f"{table.name}.csv", to_csv(table))
        plot_turns({run.name: run.metrics for run in runs}, folder / "pass_at_1.png", folder / "pass_at_1.svg")
        report.file.write(_markdown(runs, differing, tables).encode())
    return folder / "report.md"


def _check_events(run: Run, events: Sequence[HackingEvent]) -> None:
    """Refuse events that name a problem or turn which the run of the same name does not have."""
    for event in events:
        outcomes = run.outcomes.get(event.problem)
        if outcomes is None or not (0 <= event.turn < len(run.metrics) and 0 <= event.sample < outcomes.samples):
            raise UserError(
                f"the hacking events called {run.name} name problem {event.problem!r}, turn {event.turn}, sample"
                f" {event.sample}, which {run.evaluation} does not have: give the events of that run"
            )


def _markdown(runs: Sequence[Run], differing: Sequence[str], tables: Sequence[Table]) -> str:
    """The report as text."""
    parts = ["# Report\n", *map(_about, runs), ""]
    parts += [f"Setting that differs: {escape_markdown(phrase)}.\n" for phrase in differing]
    for table in tables:
        parts += [f"## {_HEADINGS[table.name]}\n", to_markdown(table)]
        if table.name == "pass_at_1":
            parts.append("![Pass@1 by turn](pass_at_1.png)\n")
    return "\n".join(parts)


def _about(run: Run) -> str:
    """One line that describes a run."""
    facts = {"problems": len(run.problems), "samples": run.settings["samples"], "turns": len(run.metrics)}
    about = ", ".join(f"{name}: {escape_markdown(str(value))}" for name, value in facts.items())
    model = f"model {escape_markdown(run.model)}, " if run.model else ""
    failed = f", **{run.failed} problems could not be evaluated and are missing**" if run.failed else ""
    return f"- {escape_markdown(run.name)}: {model}{about}, evaluation {run.digest[:12]}{failed}"
