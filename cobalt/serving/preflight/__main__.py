"""Flags of the check: `python -m cobalt.preflight`. The exit code is 2 if something would stop a run."""

import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cobalt.serving import cluster
from cobalt.stage.cli import run_script
from cobalt.stage.environment import passed_on, secrets_of_a_run
from cobalt.stage.errors import UserError

_TRUE = {"1", "ON", "YES", "TRUE"}  # as the hub's client reads a variable
_WIDTH = 200
"""Columns of the table where there is no terminal."""


@dataclass(frozen=True)
class Arguments:
    """Check every node of the Ray cluster at RAY_ADDRESS (or of the one that was started here) before a run.

    Prints one row for each node, and a sentence for each thing that would stop a run. Isolation is checked on the nodes
    that judge programs, under the COBALT_JUDGE_* variables.
    """

    data_dir: Path | None = None
    """The run's data, which every node must see."""
    model: str | None = None
    """The run's model: a folder, which every node must see, or a hub name, which every node's cache should have."""
    output_dir: Path | None = None
    """The run's output, which every node must see and be able to write to."""
    nodes: int | None = None
    """How many nodes the cluster must have; waits for those that are missing."""
    seconds: float = 300.0
    """How long nodes may take to join and, after that, to answer."""


def main(arguments: Arguments) -> int:
    """Check, print, and return the exit code."""
    from cobalt.judge.settings import JudgeSettings
    from cobalt.serving.preflight.probe import look
    from cobalt.serving.preflight.report import Question
    from cobalt.serving.preflight.rules import judge_reports
    from cobalt.serving.preflight.survey import await_nodes, survey
    from cobalt.serving.preflight.table import node_table

    if not arguments.seconds > 0:
        raise UserError(f"--seconds is {arguments.seconds:g}: it must be above 0")
    judge = JudgeSettings.from_environment()
    cluster.join()
    if arguments.nodes is not None:
        await_nodes(arguments.nodes, arguments.seconds)
    question = Question(
        paths={name: str(path) for name, path in _folders(arguments).items()},
        hub_model=_hub_name(arguments.model),
        variables=tuple(passed_on(os.environ)),
        secrets=tuple(secrets_of_a_run(os.environ)),
        salt=secrets.token_hex(16),
    )
    output = arguments.output_dir.absolute() if arguments.output_dir else None
    reports = survey(question, output=output, judge=judge, seconds=arguments.seconds)
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    verdict = judge_reports(reports, look(question, "", ""), offline=offline)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(node_table(reports, verdict))
    for host, sentence in verdict.notes:
        sys.stderr.write(f"note: {host}: {sentence}\n")
    for host, sentence in verdict.errors:
        sys.stderr.write(f"error: {host}: {sentence}\n")
    return 2 if verdict.errors else 0


def _folders(arguments: Arguments) -> dict[str, Path]:
    """The inputs that every node must see, by what they are."""
    found = {}
    if arguments.data_dir is not None:
        found["data"] = arguments.data_dir.absolute()
    if arguments.model is not None and not _hub_name(arguments.model):
        found["model"] = Path(arguments.model).absolute()
    return found


def _hub_name(model: str | None) -> str:
    """The model if it is a hub name; "" if it is a folder."""
    if model is None or model.startswith((".", "/", "~")) or model.count("/") != 1 or Path(model).exists():
        return ""
    return model


if __name__ == "__main__":
    run_script(Arguments, main)
