"""Rollouts of a training run as files of its folder: `rollouts/step_N.jsonl` for each recorded step.

A line is a prompt of the step with its samples. The trainer writes them (`cobalt_verl.rollouts`), and `cobalt watch`
shows them.
"""

import re
from pathlib import Path

from pydantic import BaseModel

from cobalt.stage.errors import naming
from cobalt.stage.records import checked
from cobalt.stage.rows import read_rows


class Response(BaseModel):
    """One row of training: its text, how many tokens of it the policy wrote, and the mean of the advantage over these.

    `prompt` is what the policy saw; None in a sample's first row, whose prompt is that of the group.
    """

    prompt: str | None = None
    text: str
    tokens: int
    advantage: float | None = None


class Sample(BaseModel):
    """One sample, with a row for a response or several for a trajectory.

    `parts` are those of the reward and the shares of verdicts (`cobalt_verl.scoring.score`), without zeros; `feedback`
    is the judge's on the first test that failed, or "".
    """

    reward: float
    parts: dict[str, float]
    feedback: str
    rows: list[Response]


class Group(BaseModel):
    """The samples of one prompt."""

    problem: str
    prompt: str
    samples: list[Sample]


def rollout_file(run: Path, step: int) -> Path:
    """File with the rollouts of a step."""
    return run / "rollouts" / f"step_{step}.jsonl"


def recorded_steps(run: Path) -> list[int]:
    """The steps whose rollouts are in a run's folder."""
    names = (re.fullmatch(r"step_(\d+)\.jsonl", path.name) for path in (run / "rollouts").glob("step_*"))
    return sorted(int(name[1]) for name in names if name)


def read_rollouts(run: Path, step: int) -> list[Group]:
    """The rollouts of a recorded step.

    Raises:
        UserError: the file cannot be read, or has something else.
    """
    path, groups = rollout_file(run, step), []
    for where, row in read_rows(path):
        with naming(f"{path}, {where}"):
            groups.append(checked(Group, row))
    return groups
