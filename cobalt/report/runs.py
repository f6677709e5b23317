"""Read evaluated runs for a report.

A run is the folder that `scripts/multi_turn.sh` leaves, or an evaluated file. Of each record only its figures are kept,
so that files larger than memory can be read. Settings come from the manifests of the stages that made the file, without
engine and seed: engines are what reports compare, and a seed does not change any distribution.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from cobalt.engine.model_name import with_digest
from cobalt.episode.record import feedback_tests, read_trajectories
from cobalt.episode.trajectory import Turn
from cobalt.problems.problem import Problem, ProblemId
from cobalt.rollout.evaluate import TurnMetrics, turn_metrics
from cobalt.rollout.protocols import Outcomes, outcomes_of
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import companion_path, file_digest, flat, is_named, made_by

EVALUATION = "evaluation.jsonl"
_STAGES = ("evaluation", "single_turn_evaluation", "multi_turn", "single_turn")
"""Stages that make a run out of problems. The making of the problems is not compared: their digests are."""
_NOT_COMPARED = ("engine", "seed", "stage", "turns", "n")
"""Arguments of a manifest that are not settings of the comparison; turns and samples are counted in the records."""


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """Tokens and costs of the responses of one turn, summed over problems and samples.

    Attributes:
        responses: Number of responses.
        prompt_tokens: Tokens of what the model was sent; None where the records have no count.
        completion_tokens: Generated tokens; None where the records have no count.
        cut_off: Responses that ended at a token limit; None where the records do not say.
        cost: Cost of the responses, in US dollars; None where no response has a cost.
        priced: Number of responses that have a cost.
    """

    responses: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cut_off: int | None = None
    cost: float | None = None
    priced: int = 0

    def __add__(self, other: "TurnUsage") -> "TurnUsage":
        return TurnUsage(*map(_total, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Run:
    """One evaluated run.

    Attributes:
        name: Its name in tables and plots.
        evaluation: Its evaluated records.
        digest: SHA-256 of that file.
        model: The name that its manifests have for the model, with a short digest (`cobalt.engine.model_name`); "" when
            they have none.
        settings: Everything, by dotted name, that must agree between compared runs.
        problems: Digest of question and hidden tests of each problem.
        metrics: Pass@1 by turn.
        pass_at_1: Pass@1 of each problem, by turn.
        outcomes: Results of each problem's programs, for the measures of `cobalt.rollout.protocols`.
        usage: Tokens and costs by turn.
        failed: Problems whose evaluation failed, so that they are missing here.
    """

    name: str
    evaluation: Path
    digest: str
    model: str
    settings: Mapping[str, Any]
    problems: Mapping[ProblemId, str]
    metrics: Sequence[TurnMetrics]
    pass_at_1: Mapping[ProblemId, Sequence[float]]
    outcomes: Mapping[ProblemId, Outcomes]
    usage: Sequence[TurnUsage]
    failed: int


def named_paths(texts: Sequence[str]) -> dict[str, Path]:
    """Paths by name: NAME=PATH gives the name, a bare path is named by its last part.

    Raises:
        UserError: two paths have the same name.
    """
    paths: dict[str, Path] = {}
    for text in texts:
        name, sign, rest = text.partition("=")
        if not (sign and name) or Path(text).exists():
            name, rest = Path(text).resolve().name, text
        if name in paths:
            raise UserError(f"two paths are called {name!r}: name one of them, as in {name}-2={text}")
        paths[name] = Path(rest)
    return paths


def evaluation_file(run: Path) -> Path:
    """The records of a run: `run` itself, or the evaluation in its folder.

    Raises:
        UserError: there is none.
    """
    path = run / EVALUATION if run.is_dir() else run
    if not path.exists():
        raise UserError(
            f"there is no {path}: give a folder that scripts/multi_turn.sh wrote, or a result of `cobalt evaluate`"
        )
    return path


def read_run(name: str, path: Path) -> Run:
    """Read one evaluated run from its folder or its file, which is read once.

    Raises:
        UserError: no evaluation, or records that are not evaluated or malformed; the record is named.
    """
    evaluation = evaluation_file(path)
    problems: dict[ProblemId, str] = {}
    public_tests: list[str] = []
    totals: list[TurnUsage] = []
    samples: set[int] = set()
    outcomes: dict[ProblemId, Outcomes] = {}
    for group in read_trajectories(evaluation):
        problem = group.problem
        with naming(f"{evaluation}: record {problem.id!r}"):
            outcomes[problem.id] = outcomes_of(group)
            public_tests.append(_digest([problem.id, feedback_tests(problem).to_record()]))
        problems[problem.id] = problem_digest(problem)
        usage = [_usage_of(turns) for turns in zip(*(each.turns for each in group.trajectories), strict=True)]
        totals = [total + one for total, one in zip(totals, usage, strict=False)] if totals else usage
        samples.add(len(group.trajectories))
    metrics = turn_metrics(list(outcomes.values()), str(evaluation))
    settings, model = _settings(evaluation)
    settings |= {
        "turns": len(metrics),
        "samples": samples.pop() if len(samples) == 1 else sorted(samples),
        "public tests (digest)": _digest(sorted(public_tests))[:16],
    }
    errors = companion_path(evaluation, ".errors.jsonl")
    return Run(
        name=name,
        evaluation=evaluation,
        digest=file_digest(evaluation),
        model=model,
        settings=settings,
        problems=problems,
        metrics=metrics,
        pass_at_1={identifier: one.pass_at(1) for identifier, one in outcomes.items()},
        outcomes=outcomes,
        usage=totals,
        failed=sum(map(bool, errors.read_bytes().split(b"\n"))) if errors.exists() else 0,
    )


def recorded_model(evaluation: Path) -> str:
    """The model that made an evaluated file, as `Run.model`."""
    return _settings(evaluation)[1]


def problem_digest(problem: Problem) -> str:
    """Digest that a problem is compared by: the SHA-256 of its question and hidden tests."""
    return _digest([problem.question, problem.hidden_tests.to_record()])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _usage_of(turns: Sequence[Turn]) -> TurnUsage:
    """The usage of one problem at one turn, as far as the file has it."""
    return TurnUsage(
        responses=len(turns),
        prompt_tokens=_total(turn.prompt_tokens for turn in turns),
        completion_tokens=_total(turn.completion_tokens for turn in turns),
        cut_off=_total(turn.finish_reason == "length" for turn in turns if turn.finish_reason is not None),
        cost=_total(turn.cost for turn in turns),
        priced=sum(turn.cost is not None for turn in turns),
    )


def _total(values: Iterable[Any]) -> Any:
    """The sum of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _settings(evaluation: Path) -> tuple[dict[str, Any], str]:
    """Settings by dotted name of all that made a file, and the model."""
    settings: dict[str, Any] = {}
    model = ""
    for arguments in made_by(evaluation):
        engine = arguments.get("engine", {})
        name = engine.get("name") or engine.get("model") or engine.get("model_name")
        model = with_digest(str(name), str(engine.get("fingerprint") or "")) if name else model
        if (stage := arguments.get("stage")) in _STAGES:
            compared = ((name, value) for name, value in flat(arguments).items() if not is_named(name, _NOT_COMPARED))
            settings |= {f"{stage}.{name}": value for name, value in compared}
    return settings, model
