"""`cobalt evaluate`: Pass@1 by turn of a multi-turn result, or pass@k of a single-turn result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from cobalt.stage.errors import UserError
from cobalt.stage.rows import read_rows
from cobalt.stage.serve_state import Services


@dataclass(frozen=True)
class Arguments:
    """Measure how good the programs of a result are on the hidden tests.

    The result of `cobalt repair` gives Pass@1 by turn, and needs the judge unless it is finished. The result of
    `cobalt sample` gives pass@k and needs no service.
    """

    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Result of `cobalt repair` or `cobalt sample` (JSONL)."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The same records as evaluated trajectories (JSONL); the figures are next to it, as .metrics.json."""
    plot: Path | None = None
    """Draw Pass@1 by turn into this PNG or SVG file (multi turn)."""
    concurrency: int = 64
    """Problems worked on at a time (multi turn)."""
    k: tuple[int, ...] | None = None
    """The k of pass@k. The default for single-turn results is 1, and 10 if every problem has at least 10 samples."""
    push_to_hub: str | None = None
    """Upload a multi-turn result to this repository of the Hugging Face Hub (owner/name), or copy it into a folder."""
    wandb: bool = False
    """Log the figures of a multi-turn result to Weights & Biases too."""
    names: Literal["renamed", "kept"] = "renamed"
    """renamed: programs that differ only in the names of their variables count as the same; kept: they do not (single
    turn)."""

    def services(self) -> Services:
        """The services that the evaluation needs.

        Raises:
            UserError: the input cannot be read.
        """
        return "none" if is_single_turn(self.input_file) else "judge"


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands import eval_multi_turn, eval_single_turn

    if is_single_turn(arguments.input_file):
        if arguments.plot is not None:
            raise UserError(f"--plot draws turns, and {arguments.input_file} is a single-turn result: leave it out")
        return eval_single_turn.main(
            eval_single_turn.Arguments(arguments.input_file, arguments.output_file, arguments.k, arguments.names)
        )
    return eval_multi_turn.main(
        eval_multi_turn.Arguments(
            arguments.input_file,
            arguments.output_file,
            plot=arguments.plot,
            k=arguments.k or (),
            push_to_hub=arguments.push_to_hub,
            wandb=arguments.wandb,
            concurrency=arguments.concurrency,
        )
    )


def is_single_turn(path: Path) -> bool:
    """Whether the first record of a result has responses of one turn.

    Raises:
        UserError: the file cannot be read.
    """
    _, record = next(read_rows(path), ("", {}))
    return record.get("responses") is not None and record.get("raw_responses") is None
