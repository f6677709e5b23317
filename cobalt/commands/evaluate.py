"""`cobalt evaluate`, `eval_multi_turn.py` and `eval_single_turn.py`: evaluations with tables and a plot."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic.dataclasses import dataclass

from cobalt.report.plots import check_plot_path, plot_turns
from cobalt.report.terminal import protocols_for_terminal, samples_table, turn_table
from cobalt.rollout.evaluate import TurnsSettings, evaluate_turns
from cobalt.rollout.evaluate_single import SamplesSettings, evaluate_samples
from cobalt.stage.errors import UserError
from cobalt.stage.rows import read_rows
from cobalt.stage.run import WRITTEN, Input, Outcome
from cobalt.stage.serve_state import Services


@dataclass(frozen=True)
class MultiTurnSettings(TurnsSettings):
    """Judge every turn of a multi-turn result on the hidden tests; print Pass@1 by turn.

    Programs are judged in this process, or behind a URL (--judge_url). Running the same command again resumes, and
    prints the table of a finished result without judging anything.
    """

    plot: Annotated[Path | None, WRITTEN] = None
    """Draw Pass@1 by turn into this PNG or SVG file."""


@dataclass(frozen=True)
class EvaluateSettings(MultiTurnSettings):
    """Measure how good the programs of a result are on the hidden tests.

    The result of `cobalt repair` gives Pass@1 by turn, for which programs are judged. The result of `cobalt sample`
    gives pass@k without judging; of the flags it has --k.
    """

    input_file: Input
    """Result of `cobalt repair` or `cobalt sample` (JSONL)."""

    def services(self) -> Services:
        """The services that the evaluation needs; raises UserError if the input cannot be read."""
        return "none" if is_single_turn(self.input_file) else "judge"


async def multi_turn(settings: MultiTurnSettings) -> Outcome:
    """The stage `evaluate_turns` with its tables, and its plot if it is asked for."""
    if settings.plot:
        check_plot_path(settings.plot)
    result = settings.output_file
    outcome = await evaluate_turns(settings)
    tables = [turn_table(outcome.metrics, title=f"Pass@1 by turn, hidden tests: {result}")]
    if outcome.figures:
        title = "Other measures, in per cent (docs/report.md)"
        tables.append(protocols_for_terminal(outcome.figures, title=title))
    if settings.plot:
        plot_turns({result.stem: outcome.metrics}, settings.plot)
    return replace(outcome, tables=tables)


def single_turn(settings: SamplesSettings) -> Outcome:
    """The stage `evaluate_samples` with its table."""
    outcome = evaluate_samples(settings)
    return replace(outcome, tables=[samples_table(outcome.groups, title=f"Hidden tests: {settings.output_file}")])


async def evaluate(settings: EvaluateSettings) -> Outcome:
    """Evaluate a result as its first record asks for."""
    if not is_single_turn(settings.input_file):
        return await multi_turn(settings)
    if settings.plot is not None:
        raise UserError(f"--plot draws turns, and {settings.input_file} is a single-turn result: leave it out")
    return single_turn(SamplesSettings(settings.input_file, settings.output_file, settings.k))


def is_single_turn(path: Path) -> bool:
    """Whether the first record of a result has responses of one turn."""
    _, record = next(read_rows(path), ("", {}))
    return record.get("responses") is not None and record.get("raw_responses") is None
