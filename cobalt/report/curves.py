"""Read the metrics file of a training run. Validation is averaged over data sources."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from cobalt.stage.errors import naming
from cobalt.stage.records import checked
from cobalt.stage.rows import read_rows

METRICS = "metrics.jsonl"
REWARD = "reward/score"


class _Step(BaseModel):
    step: int
    metrics: dict[str, float | None]


def validation_solved(metrics: Mapping[str, float]) -> float | None:
    """The share of validation prompts solved at a step, as veRL reports it; None where it did not validate."""
    shares = [v for name, v in metrics.items() if name.startswith("val-core/") and name.endswith("/acc/mean@1")]
    return sum(shares) / len(shares) if shares else None


def validation_quality(metrics: Mapping[str, float]) -> float | None:
    """Quality of a step's validation, the higher the better; None where the step did not validate.

    The share of validation prompts solved; in offline training, where nothing is sampled, the mean log-prob of a token
    of the accepted responses.
    """
    solved = validation_solved(metrics)
    return metrics.get("validation/accepted_log_prob") if solved is None else solved


def read_metrics(run: Path, *, unfinished: bool = False) -> list[tuple[int, dict[str, float]]]:
    """The steps of a training run and their metrics, from its folder; `unfinished` leaves out a torn last line.

    A value that is not a number is left out.

    Raises:
        UserError: the metrics file is missing, or is not one.
    """
    steps = []
    for position, row in read_rows(run / METRICS, unfinished=unfinished):
        with naming(f"{run / METRICS}, {position}, is not a step of a training run"):
            step = checked(_Step, row)
        steps.append((step.step, {name: value for name, value in step.metrics.items() if value is not None}))
    return steps
