"""How often feedback repairs a program, and how often the same program is written again: shares by turn for each run.

    python benchmarks/repairs.py runs/quickstart/base runs/quickstart/ft runs/quickstart/ft_cobalt

Reads `evaluation.jsonl` of each run. A repair is a program that fails a public test, followed by one that passes every
hidden test. Two programs are the same if the answers after the thinking are equal. A special case is that of the pocket
world, `raise SystemExit` after a print. The shares in docs/training.md and the counts in docs/hacking.md come from this
script.
"""

import argparse
from collections import Counter
from itertools import pairwise
from pathlib import Path

from cobalt.trajectory_codec import read_trajectories


def answer(response: str) -> str:
    """A response without its thinking."""
    return response.rpartition("</think>")[2].strip()


def count(run: Path) -> Counter[tuple[str, str]]:
    """Number of transitions between turns of a run, by group of turns and kind."""
    counts: Counter[tuple[str, str]] = Counter()
    for group in read_trajectories(run / "evaluation.jsonl"):
        for trajectory in group.trajectories:
            for place, (before, after) in enumerate(pairwise(trajectory.turns)):
                turns = "turn 0" if place == 0 else "turns 1 to 2" if place < 3 else "turns 3 on"
                solved_next = after.hidden_pass_rate == 1
                cases, cases_next = (answer(turn.response).count("raise SystemExit") for turn in (before, after))
                counts[turns, "turns"] += 1
                counts[turns, "special case added"] += cases_next > cases
                if before.hidden_pass_rate == 1:
                    counts[turns, "right"] += 1
                    counts[turns, "kept right"] += solved_next
                elif before.public_pass_rate is not None and before.public_pass_rate < 1:
                    counts[turns, "failing"] += 1
                    counts[turns, "repaired"] += solved_next
                    counts[turns, "same again"] += answer(before.response) == answer(after.response)
    return counts


def main() -> None:
    """Print the shares of the runs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders that scripts/multi_turn.sh wrote")
    for name in parser.parse_args().runs:
        counts = count(Path(name))
        for turns in ("turn 0", "turns 1 to 2", "turns 3 on"):
            shares = [
                f"{kind} {counts[turns, kind] / max(1, counts[turns, whole]):.1%} of {counts[turns, whole]}"
                for kind, whole in (("repaired", "failing"), ("same again", "failing"), ("kept right", "right"))
            ]
            shares.append(f"special case added {counts[turns, 'special case added']} of {counts[turns, 'turns']}")
            print(f"{name}, {turns}: {', '.join(shares)}")


if __name__ == "__main__":
    main()
