"""How often feedback repairs a program, and how often the same program comes again: shares by turn, one run a line.

    python benchmarks/repairs.py runs/quickstart/base runs/quickstart/ft runs/quickstart/ft_cobalt

Reads `evaluation.jsonl` of each run. A repair is a program that fails a public test, followed by one that passes every
hidden test; a program is the same if the answers behind the thinking are; a special case is the pocket world's, `raise
SystemExit` behind a print. The source of the shares in docs/training.md and of the counts in docs/hacking.md.
"""

import sys
from collections import Counter
from pathlib import Path

from cobalt.records import read_records


def answer(response: str) -> str:
    """A response without its thinking."""
    return response.rpartition("</think>")[2].strip()


def count(run: Path) -> Counter[tuple[str, str]]:
    """Transitions of a run by group of turns and kind."""
    counts: Counter[tuple[str, str]] = Counter()
    for record in read_records(run / "evaluation.jsonl"):
        responses, public = record["raw_responses"], record["public_pass_rates"]
        for sample, hidden in enumerate(record["all_pass_rates"]):
            for turn in range(len(hidden) - 1):
                turns = "turn 0" if turn == 0 else "turns 1 to 2" if turn < 3 else "turns 3 on"
                solved_next = hidden[turn + 1] == 1
                cases, cases_next = (answer(responses[at][sample]).count("raise SystemExit") for at in (turn, turn + 1))
                counts[turns, "turns"] += 1
                counts[turns, "special case added"] += cases_next > cases
                if hidden[turn] == 1:
                    counts[turns, "right"] += 1
                    counts[turns, "kept right"] += solved_next
                elif public[turn][sample] < 1:
                    counts[turns, "failing"] += 1
                    counts[turns, "repaired"] += solved_next
                    counts[turns, "same again"] += answer(responses[turn][sample]) == answer(
                        responses[turn + 1][sample]
                    )
    return counts


def main() -> None:
    """Print the shares of the runs named on the command line."""
    for name in sys.argv[1:]:
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
