"""Read the reward and validation curves of a training run from its metrics file.

Validation is averaged over data sources. Nothing is smoothed; `plots.plot_training` does that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from cobalt.stage.errors import UserError

METRICS = "metrics.jsonl"
REWARD = "reward/score"


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """The curves of a training run.

    Attributes:
        rewards: Steps and the mean rewards of their samples.
        validations: Steps and the share of validation prompts solved, one sample each.
    """

    rewards: Sequence[tuple[int, float]]
    validations: Sequence[tuple[int, float]]


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


def read_curves(run: Path) -> TrainingCurves:
    """Read the curves of a training run from its folder.

    Raises:
        UserError: the metrics file is missing, or is not one.
    """
    steps = read_metrics(run)
    rewards = [(step, metrics[REWARD]) for step, metrics in steps if REWARD in metrics]
    solved = [(step, validation_solved(metrics)) for step, metrics in steps]
    validations = [(step, share) for step, share in solved if share is not None]
    if not rewards and not validations:
        raise UserError(f"{run / METRICS} has no step with a reward yet")
    return TrainingCurves(rewards, validations)
