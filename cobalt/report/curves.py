"""Read the metrics file of a training run. Validation is averaged over data sources."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from cobalt.stage.errors import UserError

METRICS = "metrics.jsonl"
REWARD = "reward/score"


class _Step(BaseModel):
    step: int
    metrics: dict[str, float]


def validation_solved(metrics: Mapping[str, float]) -> float | None:
    """The share of validation prompts solved at a step, as veRL reports it; None where it did not validate."""
    shares = [v for name, v in metrics.items() if name.startswith("val-core/") and name.endswith("/acc/mean@1")]
    return sum(shares) / len(shares) if shares else None


def validation_quality(metrics: Mapping[str, float]) -> float | None:
    """How good the validation of a step was, the more the better; None where it did not validate.

    The share of validation prompts solved; in offline training, where nothing is sampled, the mean log-prob of a token
    of the accepted responses.
    """
    solved = validation_solved(metrics)
    return metrics.get("validation/accepted_log_prob") if solved is None else solved


def read_metrics(run: Path, *, unfinished: bool = False) -> list[tuple[int, dict[str, float]]]:
    """The steps of a training run and their metrics, from its folder; `unfinished` leaves out a torn last line.

    Raises:
        UserError: the metrics file is missing, or is not one.
    """
    path = run / METRICS
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path} cannot be read: give the --output_dir of a training run") from None
    if unfinished:
        text = text[: text.rfind("\n") + 1]
    lines = text.removesuffix("\n").split("\n") if text or not unfinished else []
    steps = []
    for number, line in enumerate(lines, 1):
        try:
            record = _Step.model_validate_json(line)
        except ValidationError:
            cut = ", perhaps cut off" if number == len(lines) else ""
            raise UserError(f"{path}, line {number}: not a step of a training run{cut}") from None
        steps.append((record.step, record.metrics))
    return steps
