"""The paper's published figures, each with its source and how far it can be trusted. Quoted, never measured here."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from cobalt.report.tables import Table


def published_tables() -> list[Table]:
    """Pass@1 and hacking events as they were published (Cobalt, arXiv 2602.03806)."""
    content = _content()
    sources = content["sources"]
    legend = "; ".join(f'"{name}" is {text}' for name, text in sources.items()) + "."
    rows = content["pass_at_1"]
    scores = Table(
        "published_pass_at_1",
        "Quoted, not measured here. Pass@1 in per cent, improvements in points; the papers' problems, models and"
        " budgets are not those of the runs above. Sources: " + legend,
        ("row", "benchmark", "up to turn", "Pass@1 %", "source"),
        [
            (row["row"], row["benchmark"], str(row["last_turn"] or "not stated"), f"{row['value']:.1f}", row["source"])
            for row in rows
        ],
        ("row", "benchmark", "last_turn", "pass_at_1_percent", "source"),
        [(row["row"], row["benchmark"], row["last_turn"], row["value"], sources[row["source"]]) for row in rows],
    )
    events = content["hacking_events"]
    hacking = Table(
        "published_hacking",
        "Quoted, not measured here. Hacking events on the perturbed development set; sources as above.",
        ("row", "events", "source"),
        [(row["row"], str(row["value"]), row["source"]) for row in events],
        ("row", "events", "source"),
        [(row["row"], row["value"], sources[row["source"]]) for row in events],
    )
    return [scores, hacking]


def published_offline_table() -> Table:
    """Pass@k of offline RL as it was published (arXiv 2605.28409)."""
    rows = _content()["offline"]
    return Table(
        "published_offline",
        "Quoted, not measured here, and known from summaries of the paper alone: Qwen2.5-Coder trained on CodeNet, in"
        " per cent.",
        ("model", "benchmark", "figure", "row", "value"),
        [(row["model"], row["benchmark"], row["figure"], row["row"], f"{row['value']:.2f}") for row in rows],
        ("model", "benchmark", "figure", "row", "percent"),
        [(row["model"], row["benchmark"], row["figure"], row["row"], row["value"]) for row in rows],
    )


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    return content
