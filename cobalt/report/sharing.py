"""An evaluation for others: its figures in Weights & Biases, its trajectories on the Hugging Face Hub."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cobalt.problems import hub
from cobalt.rollout.evaluate import TurnMetrics
from cobalt.rollout.protocols import Mean
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.manifest import companion_path, manifest_path, recorded_arguments


def check_wandb() -> None:
    """Raise UserError if the package of Weights & Biases is not installed."""
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise UserError("--wandb needs the package wandb: scripts/setup.sh --profile cpu installs it") from None


def log_evaluation(result: Path, metrics: Sequence[TurnMetrics], figures: Mapping[str, Sequence[Mean]]) -> None:
    """Log the figures of an evaluated file as one run of Weights & Biases, with a step for each turn.

    The run's name is that of the result's folder and file; its configuration is the result's manifest. `figures` are
    further measures by name, each by turn.

    Raises:
        InfrastructureError: Weights & Biases does not answer, or refuses the key.
    """
    import wandb

    folder = result.absolute().parent
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "cobalt"),
            name=f"{folder.name}/{result.stem}",
            job_type="evaluation",
            dir=str(folder),
            config=dict(recorded_arguments(result) or {}),
        )
        for row in metrics:
            values = {"pass@1": row.pass_at_1, "pass@1_lower": row.interval[0], "pass@1_upper": row.interval[1]}
            values |= {"tests_passed": row.pass_rate}
            values |= {name: means[row.turn].value for name, means in figures.items()}
            run.log({f"evaluation/{name}": value for name, value in values.items()}, step=row.turn)
        run.finish()
    except (wandb.errors.CommError, wandb.errors.UsageError) as error:
        raise InfrastructureError(f"Weights & Biases did not take the figures: {error}") from None


def push_trajectories(result: Path, target: str) -> str:
    """Upload an evaluated file with its manifest and its figures, and say where (`cobalt.problems.hub.push`)."""
    companions = (manifest_path(result), companion_path(result, ".metrics.json"))
    files = {path.name: path for path in (result, *companions) if path.exists()}
    about = (
        f"`{result.name}` has one problem in each line, with the conversations, programs and verdicts of its"
        " trajectories. The axes of its fields are in the documentation of Cobalt (docs/commands.md)."
    )
    return hub.push(target, files, hub.trajectories_card(result.name, about))
