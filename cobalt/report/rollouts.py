"""Rollouts of a training run as files of its folder: `rollouts/step_N.jsonl` for each recorded step.

A line is a prompt of the step with its samples. The trainer writes them (`cobalt_verl.rollouts`), and `cobalt watch`
shows them.
"""

import re
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from cobalt.stage.errors import naming
from cobalt.stage.records import checked
from cobalt.stage.rows import read_rows


class Response(BaseModel):
    """What the policy wrote in one row of training.

    Attributes:
        prompt: What the policy saw; None in a sample's first row, whose prompt is that of the group.
        text: The row's tokens after the prompt, with the marks of the chat template.
        tokens: How many of them the policy wrote.
        advantage: Mean of the advantage over these; None where there is none.
    """

    prompt: str | None = None
    text: str
    tokens: int
    advantage: float | None


class Sample(BaseModel):
    """One sample: a response, or a trajectory of several.

    Attributes:
        reward: What training maximises.
        parts: The reward by part and the shares of verdicts (`cobalt_verl.scoring.score`); parts of 0 are left out.
        feedback: The judge's feedback on the first test that failed; "" without one.
        rows: At least one.
    """

    reward: float
    parts: dict[str, float]
    feedback: str
    rows: list[Response]


class Group(BaseModel):
    """The samples of one prompt."""

    problem: str | int | None
    prompt: str
    samples: list[Sample]


_GROUP = TypeAdapter(Group)


def rollout_file(run: Path, step: int) -> Path:
    """Where the rollouts of a step lie."""
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
            groups.append(checked(_GROUP, row))
    return groups
