"""`cobalt evaluate`, `eval_multi_turn.py` and `eval_single_turn.py`: evaluations with tables."""

from dataclasses import replace
from pathlib import Path

from pydantic.dataclasses import dataclass

from cobalt.report.terminal import protocols_for_terminal, samples_table, turn_table
from cobalt.rollout.evaluate import SamplesSettings, TurnsSettings, evaluate_samples, evaluate_turns
from cobalt.stage.rows import read_rows
from cobalt.stage.run import Input, Outcome
from cobalt.stage.serve_state import Services


@dataclass(frozen=True)
class EvaluateSettings(TurnsSettings):
    """Measure how good the programs of a result are on the hidden tests.

    The result of `cobalt repair` gives Pass@1 by turn, for which programs are judged. The result of `cobalt sample`
    gives pass@k without judging; of the flags it has --k.
    """

    input_file: Input
    """Result of `cobalt repair` or `cobalt sample` (JSONL)."""

    def services(self) -> Services:
        """The services that the evaluation needs; raises UserError if the input cannot be read."""
        return "none" if is_single_turn(self.input_file) else "judge"


async def multi_turn(settings: TurnsSettings) -> Outcome:
    """The stage `evaluate_turns` with its tables."""
    outcome = await evaluate_turns(settings)
    tables = [turn_table(outcome.metrics, title=f"Pass@1 by turn, hidden tests: {settings.output_file}")]
    if outcome.figures:
        title = "Other measures, in per cent (docs/report.md)"
        tables.append(protocols_for_terminal(outcome.figures, title=title))
    return replace(outcome, tables=tables)


def single_turn(settings: SamplesSettings) -> Outcome:
    """The stage `evaluate_samples` with its table."""
    outcome = evaluate_samples(settings)
    return replace(outcome, tables=[samples_table(outcome.groups, title=f"Hidden tests: {settings.output_file}")])


async def evaluate(settings: EvaluateSettings) -> Outcome:
    """Evaluate a result as its first record asks for."""
    if is_single_turn(settings.input_file):
        return single_turn(SamplesSettings(settings.input_file, settings.output_file, settings.k))
    return await multi_turn(settings)


def is_single_turn(path: Path) -> bool:
    """Whether the first record of a result has responses of one turn."""
    _, record = next(read_rows(path), ("", {}))
    return record.get("responses") is not None and record.get("raw_responses") is None
