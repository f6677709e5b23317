"""A built world with open sentences as a table: its ceilings and, where that is asked for, how its seed model fares."""

import json
from collections.abc import Sequence
from itertools import islice

from rich.table import Table

from cobalt.pocket.base import measure_base
from cobalt.pocket.ceilings import TURNS
from cobalt.pocket.world import PocketWorld
from cobalt.problems.problem import load_problems


def overview(world: PocketWorld, seed: int, base_problems: int = 0) -> Table:
    """Shares in per cent, a column for each turn.

    Args:
        world: A built world with open sentences.
        seed: Of the base's samples.
        base_problems: On how many of the first development problems the seed model (base) is measured; 0: on none.

    Raises:
        UserError: with `base_problems`, programs cannot be isolated on this machine.
        InfrastructureError: with `base_problems`, the judge failed.
    """
    table = Table(title="Open sentences: % of the problems, by turn", title_justify="left", caption_justify="left")
    table.add_column("split")
    table.add_column("what")
    for turn in range(TURNS):
        table.add_column(str(turn), justify="right")
    counts = []
    for split, figures in json.loads(world.ceilings.read_text(encoding="utf-8")).items():
        by_slots = ", ".join(f"{number} with {count}" for count, number in figures["open_slots"].items())
        counts.append(f"{split}: {figures['problems']} problems by their open sentences: {by_slots}")
        table.add_row(split, "single-turn ceiling", _per_cent(figures["single_turn"]))
        _add_player(table, "blind repairer", figures["blind"], figures["blind_repair_rates"])
        _add_player(table, "repair ceiling", figures["repair"], figures["repair_rates"])
        table.add_section()
    if base_problems:
        problems = list(islice(load_problems(world.dev), base_problems))
        base = measure_base(world.model, problems, TURNS, seed)
        table.add_row("dev", f"base, first {len(problems)} problems")
        _add_player(table, "base", base.pass_at_1, base.repair_rates)
    table.caption = "\n".join(counts)
    return table


def _add_player(table: Table, name: str, solved: Sequence[float], repaired: Sequence[float | None]) -> None:
    """Two rows: what is solved after each turn, and the share of the problems unsolved before a turn that it solves."""
    table.add_row("", f"{name}: solved", *map(_per_cent, solved))
    table.add_row("", f"{name}: repair rate", "", *map(_per_cent, repaired))


def _per_cent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
