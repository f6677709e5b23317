"""The nodes as a table, one row each; what is wrong with a node is said below the table, not in it."""

from collections import Counter

from rich.table import Table

from cobalt.serving.preflight.report import Answer, Disk, NodeReport, Verdict

_GIB = 2**30
_COLUMNS = (
    "node", "address", "CPUs", "judges", "GPUs", "driver", "Python", "paths", "output", "free: output, /tmp, /dev/shm",
    "clock", "finding",
)  # fmt: skip


def node_table(reports: list[NodeReport], verdict: Verdict) -> Table:
    """One row for each node."""
    table = Table(*_COLUMNS, title=f"{len(reports)} nodes")
    wrong = Counter(host for host, _ in verdict.errors)
    for report in reports:
        cells = _cells(report, report.answer) if report.answer else ["-"] * 6
        finding = f"[red]{wrong[report.host]} wrong[/red]" if wrong[report.host] else "[green]ok[/green]"
        where = report.address + (f" ({report.answer.interface})" if report.answer and report.answer.interface else "")
        isolation = _isolation(report)
        table.add_row(report.host, where, f"{report.cpus:g}", isolation, *cells, _clock(report), finding)
    return table


def _cells(report: NodeReport, answer: Answer) -> list[str]:
    seen = sum(bool(found) for found in answer.paths.values())
    names = Counter(answer.gpus)
    shared = {None: "-", "": "shared" if report.seen_by_launcher else "not seen"}.get(answer.output, "not shared")
    return [
        ", ".join(f"{count} x {name}" for name, count in names.items())
        or f"{report.gpus:g} logical" * bool(report.gpus),
        answer.driver or "-",
        answer.python,
        f"{seen} of {len(answer.paths)}",
        shared,
        ", ".join(_gib(answer.disks[name]) for name in ("output", "/tmp", "/dev/shm") if name in answer.disks),
    ]


def _isolation(report: NodeReport) -> str:
    if not report.judges:
        return "no"
    if report.answer is None:
        return "-"
    return "isolation fails" if report.answer.isolation else "isolation holds"


def _gib(disk: Disk) -> str:
    return f"{disk.free / _GIB:.0f} GiB"


def _clock(report: NodeReport) -> str:
    return f"{report.clock:+.2f} s" if report.answer else "-"
