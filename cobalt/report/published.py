"""The paper's published figures, each with its source and how far it can be trusted. Quoted, never measured here."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cobalt.report.tables import Table


def published_tables() -> list[Table]:
    """Pass@1 and hacking events as they were published (Cobalt, arXiv 2602.03806)."""
    content = _content()
    sources = content["sources"]
    legend = "; ".join(f'"{name}" is {text}' for name, text in sources.items()) + "."
    return [
        _quoted(
            "published_pass_at_1",
            "Pass@1 in per cent, improvements in points; the papers' problems, models and budgets are not those of the"
            f" runs above. Sources: {legend}",
            content["pass_at_1"],
            sources,
        ),
        _quoted(
            "published_hacking",
            "Hacking events on the perturbed development set; sources as above.",
            content["hacking_events"],
            sources,
        ),
    ]


def published_offline_table() -> Table:
    """Pass@k of offline RL as it was published (arXiv 2605.28409)."""
    caption = "Known from summaries of the paper alone: Qwen2.5-Coder trained on CodeNet, in per cent."
    return _quoted("published_offline", caption, _content()["offline"], {})


def _quoted(name: str, caption: str, rows: Sequence[Mapping[str, Any]], sources: Mapping[str, str]) -> Table:
    header = list(rows[0])
    shown = [list(map(str, row.values())) for row in rows]
    data = [[sources.get(value, value) for value in row.values()] for row in rows]
    return Table(name, f"Quoted, not measured here. {caption}", header, shown, header, data)


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    return content
