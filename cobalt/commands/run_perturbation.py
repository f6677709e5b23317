"""Make public tests impossible: the flags and the work of `preproc/run_perturbation.py`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Arguments:
    """Swap the expected outputs of two public tests of each problem, so that no correct program passes them."""

    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Problems with public tests, or a single-turn result, which keeps its shared first turn (JSONL)."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The same records with the perturbed tests (JSONL), with their manifest next to them as .run.json."""
    exclude_ids: Path | None = None
    """File with one id a line: problems to leave out, such as those with several right answers."""
    seed: int = 42
    """Decides which tests of a problem are swapped."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import quoted, say_summary
    from cobalt.hacking.perturbation import PerturbationSettings, perturb_problems

    summary = perturb_problems(PerturbationSettings(**vars(arguments)))
    say_summary(
        summary,
        f"Perturbed public tests: {arguments.output_file}",
        str(arguments.output_file),
        f"cobalt repair -i {quoted(arguments.output_file)} --public_tests perturbed"
        f" -o {quoted(arguments.output_file.with_name('multi_turn.jsonl'))}",
    )
    return 0
