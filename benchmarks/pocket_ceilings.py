"""Ceilings of pocket worlds with open sentences, by share and split, over seeds: the table of docs/pocket.md.

    python benchmarks/pocket_ceilings.py --open_shares 0.3 0.5 0.7 1.0 --seeds 0 1 2

No model is made. Takes about a minute for each share and seed on one busy core.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cobalt.cli import run_script
from cobalt.datasets.pocket.ceilings import Ceilings, ceilings
from cobalt.datasets.pocket.dataset import SIZES, draw_problems
from cobalt.datasets.pocket.problems import Split


@dataclass(frozen=True)
class Arguments:
    """Print the ceilings of pocket worlds as a Markdown table."""

    open_shares: tuple[float, ...] = (0.3, 0.5, 0.7, 1.0)
    """The shares to try; see `python -m cobalt.datasets.pocket --help`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The worlds of each share; cells name their figures in this order."""
    splits: tuple[Split, ...] = ("dev", "test")
    """The problem files to compute for."""


def row(share: float, split: Split, worlds: Sequence[Ceilings]) -> str:
    """A line of the table; shares in per cent, one figure for each world."""
    problems = sum(world.problems for world in worlds)
    slots = [sum(world.open_slots.get(count, 0) for world in worlds) for count in range(3)]
    slots.append(problems - sum(slots))
    columns = [
        [100 * number / problems for number in slots],
        [100 * world.single_turn for world in worlds],
        *([100 * world.blind[turn] for world in worlds] for turn in (1, 2)),
        *([100 * world.repair[turn] for world in worlds] for turn in (1, 2)),
    ]
    cells = [" / ".join(f"{float(figure):.1f}" for figure in column) for column in columns]
    return f"| {share} | {split} | {' | '.join(cells)} |"


def main(arguments: Arguments) -> int:
    """Compute and print; the exit code."""
    print(
        "| share | split | problems with 0 / 1 / 2 / more open sentences | single-turn ceiling"
        " | blind, turn 1 | blind, turn 2 | repair ceiling, turn 1 | repair ceiling, turn 2 |"
    )
    print("|---" * 8 + "|")
    for split in arguments.splits:
        for share in arguments.open_shares:
            worlds = [ceilings(draw_problems(split, SIZES[split], seed, share)) for seed in arguments.seeds]
            print(row(share, split, worlds), flush=True)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
