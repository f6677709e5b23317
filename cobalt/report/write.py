"""Write a report: one markdown file with everything, and each table and plot as files of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cobalt.hacking.events import HackingEvent, count_categories, read_events, tempted_turns
from cobalt.report.comparison import check_comparable
from cobalt.report.plots import plot_categories, plot_turns
from cobalt.report.published import published_tables
from cobalt.report.run_tables import (
    differences_table,
    difficulty_table,
    hacking_table,
    protocols_table,
    turns_table,
    usage_table,
)
from cobalt.report.runs import Run
from cobalt.report.tables import Table, escape_markdown, to_csv, to_latex, to_markdown
from cobalt.stage.atomic import replace_text
from cobalt.stage.errors import UserError, system_errors
from cobalt.stage.files import check_replaceable
from cobalt.stage.manifest import file_digest, open_manifest, recorded_arguments

_NOT_IN_EVERY_REPORT = ("differences", "protocols", "difficulty", "hacking", "published_pass_at_1", "published_hacking")
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
    published: bool = False,
    allowed: Sequence[str] = (),
    ks: Sequence[int] = (),
) -> Path:
    """Compare runs, and write `report.md`, its tables (`.csv`, `.tex`) and its plots (`.png`, `.svg`) into `folder`.

    An existing report is replaced. Its manifest is `report.md.run.json` in the same folder.

    Args:
        runs: The runs, of the same window of dates; differences are to the first.
        folder: Where to write.
        hacking: Hacking events of each model, by the name to show; those with a run's name must be of that run.
        published: Show the paper's published figures, too.
        allowed: Settings that may differ between the runs.
        ks: The k of pass@k and of the best of k; empty: see `cobalt.rollout.protocols.protocol_figures`.

    Returns:
        The markdown file.

    Raises:
        UserError: nothing to compare, runs that cannot be compared, events that their run does not have, a file that
            cannot be written, or a folder that holds a file of a report's name and no report.
    """
    if not runs:
        raise UserError("there is nothing to report: name at least one run, such as runs/quickstart/ft_cobalt")
    hacking = hacking or {}
    result = folder / "report.md"
    check_replaceable(result, "report", [])
    _check_folder(folder, result)
    events = {name: read_events(path) for name, path in hacking.items()}
    differing = check_comparable(runs, allowed)
    for run in runs:
        _check_events(run, events.get(run.name, ()))
    differences = differences_table(runs) if len(runs) > 1 else None
    made = [turns_table(runs), differences, protocols_table(runs, ks), difficulty_table(runs), usage_table(runs)]
    tables = [table for table in made if table is not None]
    if events:
        tables.append(hacking_table(events, {name: tempted_turns(path) for name, path in hacking.items()}))
    quoted = published_tables() if published else []
    arguments = {
        "stage": "report",
        "runs": {run.name: run.digest for run in runs},
        "hacking": {name: file_digest(path) for name, path in hacking.items()},
        "published": published,
        "allow": list(allowed),
        "k": list(ks),
        "window": str(runs[0].window),
    }
    with system_errors(f"cannot write the report into {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        result.unlink(missing_ok=True)  # a report is made anew, not resumed
        for path in _files(folder, _NOT_IN_EVERY_REPORT):
            path.unlink(missing_ok=True)
        open_manifest(result, arguments)
        for table in tables + quoted:
            replace_text(folder / f"{table.name}.csv", to_csv(table))
            replace_text(folder / f"{table.name}.tex", to_latex(table))
        plot_turns({run.name: run.metrics for run in runs}, folder / "pass_at_1.png", folder / "pass_at_1.svg")
        if any(events.values()):
            counts = {name: count_categories(of_run) for name, of_run in events.items()}
            plot_categories(counts, folder / "hacking.png", folder / "hacking.svg")
        replace_text(result, _markdown(runs, differing, tables, quoted, plotted=any(events.values())))
    return result


def _files(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / f"{name}.{kind}" for name in names for kind in ("csv", "tex", "png", "svg")]


def _check_folder(folder: Path, result: Path) -> None:
    """Refuse a folder with files of a report's names where no report is, or was being written."""
    if (recorded_arguments(result) or {}).get("stage") == "report":
        return
    for path in _files(folder, ("pass_at_1", "usage", *_NOT_IN_EVERY_REPORT)):
        if path.exists() and path.name != "pass_at_1.png":  # scripts/multi_turn.sh plots an evaluation by this name
            raise UserError(f"{path} exists and belongs to no report of this command: name another folder")


def _check_events(run: Run, events: Sequence[HackingEvent]) -> None:
    """Refuse events that name a problem or turn which the run of the same name does not have."""
    for event in events:
        outcomes = run.outcomes.get(event.problem)
        if outcomes is None or not (0 <= event.turn < len(run.metrics) and 0 <= event.sample < outcomes.samples):
            raise UserError(
                f"the hacking events called {run.name} name problem {event.problem!r}, turn {event.turn}, sample"
                f" {event.sample}, which {run.evaluation} does not have: give the events of that run"
            )


def _markdown(
    runs: Sequence[Run], differing: Sequence[str], tables: Sequence[Table], quoted: Sequence[Table], *, plotted: bool
) -> str:
    """The report as text; `plotted`: there is a plot of hacking events."""
    window = runs[0].window
    parts = ["# Report\n", *map(_about, runs), ""]
    parts += [f"Problems of contests {window} alone.\n"] if window else []
    parts += [f"Setting that differs: {escape_markdown(phrase)}.\n" for phrase in differing]
    for table in tables:
        parts += [f"## {_HEADINGS[table.name]}\n", to_markdown(table)]
        if table.name == "pass_at_1":
            parts.append("![Pass@1 by turn](pass_at_1.png)\n")
    parts += ["![Categories of hacking events](hacking.png)\n"] if plotted else []
    if quoted:
        parts += ["## Published figures (quoted, not measured here)\n", *map(to_markdown, quoted)]
    return "\n".join(parts)


def _about(run: Run) -> str:
    """One line that describes a run."""
    facts = {"problems": len(run.problems), "samples": run.settings["samples"], "turns": len(run.metrics)}
    about = ", ".join(f"{name}: {escape_markdown(str(value))}" for name, value in facts.items())
    model = f"model {escape_markdown(run.model)}, " if run.model else ""
    failed = f", **{run.failed} problems could not be evaluated and are missing**" if run.failed else ""
    return f"- {escape_markdown(run.name)}: {model}{about}, evaluation {run.digest[:12]}{failed}"
