"""Evaluation of single-turn results: pass@k and diversity, over all problems and by difficulty.

A single-turn record already has the result of each sample on all tests, so nothing is judged here. The evaluated record
is one of trajectories with a single turn, which reports and the viewer read like any other. A sample is correct if its
program passes every hidden test.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from cobalt.episode.record import (
    decode_first_turns,
    decode_results,
    encode_evaluated_single_turn,
    read_trajectories,
)
from cobalt.episode.trajectory import ProblemTrajectories, Trajectory
from cobalt.problems.problem import Problem
from cobalt.rollout.diversity import Names, distinct_programs
from cobalt.rollout.evaluate import evaluated, turn_metrics, write_metrics
from cobalt.rollout.metrics import RATES, pass_at_k
from cobalt.rollout.protocols import EVERY_PROBLEM, Mean, check_k, mean_over_problems
from cobalt.stage.errors import UserError, naming
from cobalt.stage.records import iterate_records
from cobalt.stage.run import Input, Outcome, Output, stage, whole

USUAL_K = (1, 10)


@dataclasses.dataclass(frozen=True, slots=True)
class SampleScore:
    """The samples of one problem.

    Attributes:
        difficulty: As the problem has it; "" if it has none.
        samples: How many responses there are.
        correct: How many of their programs pass every hidden test.
        distinct: How many different programs there are; responses without a program do not count.
        distinct_correct: How many different programs pass every hidden test.
    """

    difficulty: str
    samples: int
    correct: int
    distinct: int
    distinct_correct: int


@dataclasses.dataclass(frozen=True, slots=True)
class SampleMetrics:
    """The figures of a group of problems.

    Attributes:
        group: A difficulty, or "all".
        problems: How many problems there are.
        samples: Smallest and largest number of samples of a problem.
        pass_at: Unbiased pass@k by k, from 0 to 1.
        distinct: Different programs of a problem.
        distinct_correct: Different programs of a problem that pass every hidden test.
    """

    group: str
    problems: int
    samples: tuple[int, int]
    pass_at: dict[int, Mean]
    distinct: Mean
    distinct_correct: Mean


@dataclass(frozen=True)
class SamplesSettings:
    """Estimate pass@k on hidden tests, over all problems and by difficulty, and count different programs.

    Judges nothing and needs no service: the result of run_single_turn_*.py has the verdicts.
    """

    input_file: Input
    """Result of run_single_turn_*.py (JSONL)."""
    output_file: Output
    """The same records as evaluated trajectories of one turn (JSONL), for reports and the viewer; the figures are next
    to it, as .metrics.json."""
    k: tuple[int, ...] | None = None
    """The k of pass@k. Default: 1 and 10, as far as every problem has so many samples."""
    names: Names = "renamed"
    """Whether programs that differ in the names of their variables only count as the same (renamed) or not (kept)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplesOutcome(Outcome):
    """What `evaluate_samples` did.

    Attributes:
        groups: The figures of all problems and of each difficulty; see `sample_metrics`.
    """

    groups: Sequence[SampleMetrics]


@stage
def evaluate_samples(settings: SamplesSettings) -> SamplesOutcome:
    """Measure a single-turn result.

    Writes its records with the fields of `encode_evaluated_single_turn`, and the figures next to them, as
    .metrics.json.

    Raises:
        UserError: bad input, or a result that another input made; as for `sample_metrics`.
    """
    source, result = settings.input_file, settings.output_file
    with whole(result, {"stage": "single_turn_evaluation"}, [source]) as output:
        output.write(_evaluated(source, record) for record in iterate_records(source))
    groups = sample_metrics([sample_score(group, settings.names) for group in read_trajectories(result)], settings.k)
    figures = {"single_turn": {"names": settings.names, "groups": [asdict(group) for group in groups]}}
    write_metrics(turn_metrics(read_trajectories(result), str(result)), result, figures)
    return SamplesOutcome(groups=groups, **evaluated(result))


def _evaluated(source: Path, record: dict[str, Any]) -> dict[str, Any]:
    if record.get("conversations") is not None:
        raise UserError(f"{source} is a multi-turn result: use eval_multi_turn.py")
    with naming(f"{source}: record {record['id']!r}"):
        problem = Problem.parse(record)
        turns = decode_first_turns(record)
        if turns is None:
            raise UserError("it has no 'responses': run a single-turn script first")
        results = decode_results(record, len(problem.tests))
        if len(results) != len(turns):
            raise UserError("field 'exec_results' must have one entry for each response")
        hidden = problem.tests.places_of(problem.hidden_tests)
        public = problem.tests.places_of(problem.public_tests) if len(problem.public_tests) else []
    trajectories = []
    for sample, (turn, result) in enumerate(zip(turns, results, strict=True)):
        seen, unseen = result.select(public), result.select(hidden)
        judged = replace(
            turn,
            public_pass_rate=seen.pass_rate,
            public_result=seen,
            hidden_pass_rate=unseen.pass_rate,
            hidden_verdicts=tuple(verdict.kind for verdict in unseen.verdicts),
        )
        trajectories.append(Trajectory(problem, sample, [], (judged,)))
    return record | encode_evaluated_single_turn(trajectories)


def read_evaluated(path: Path) -> Iterator[ProblemTrajectories]:
    """The problems of an evaluated file, or of a single-turn result, whose verdicts are then those of its own judging.

    Args:
        path: A result of eval_multi_turn.py, eval_single_turn.py or run_single_turn_*.py.

    Raises:
        UserError: as for `read_trajectories`.
    """
    return read_trajectories(path, prepare=lambda record: _evaluated_if_single(path, record))


def _evaluated_if_single(source: Path, record: dict[str, Any]) -> dict[str, Any]:
    single, *several = (record.get(field) is not None for field in ("responses", "raw_responses", "conversations"))
    return _evaluated(source, record) if single and not any(several) else record


def sample_score(group: ProblemTrajectories, names: Names = "renamed") -> SampleScore:
    """The figures of one evaluated problem, from the first turn of its trajectories.

    Raises:
        UserError: the problem is not evaluated.
    """
    rates = [trajectory.hidden_pass_rates[0] for trajectory in group.trajectories]
    programs = [trajectory.turns[0].program for trajectory in group.trajectories]
    correct = [program for program, rate in zip(programs, rates, strict=True) if rate == 1.0]
    return SampleScore(
        difficulty=str(group.problem.record.get("difficulty") or ""),
        samples=len(rates),
        correct=len(correct),
        distinct=distinct_programs((program for program in programs if program is not None), names),
        distinct_correct=distinct_programs((program for program in correct if program is not None), names),
    )


def sample_metrics(scores: Sequence[SampleScore], ks: Sequence[int] | None = None) -> list[SampleMetrics]:
    """The figures of all problems, and then of each difficulty in the order of the problems, if they have one.

    Args:
        scores: The figures of each problem.
        ks: The k of pass@k. None: those of 1 and 10 for which every problem has enough samples.

    Raises:
        UserError: there is no problem, a k of `ks` is below 1, or a problem has fewer samples than it.
    """
    if not scores:
        raise UserError("there is no evaluated problem")
    fewest = min(score.samples for score in scores)
    if ks is None:
        ks = [k for k in USUAL_K if k <= fewest]
    check_k(ks)
    for k in ks:
        if k > fewest:
            raise UserError(f"pass@{k} needs at least {k} samples of each problem: a problem has {fewest}")
    difficulties = list(dict.fromkeys(score.difficulty for score in scores if score.difficulty))
    groups = [_metrics(EVERY_PROBLEM, scores, ks)]
    for difficulty in difficulties:
        groups.append(_metrics(difficulty, [score for score in scores if score.difficulty == difficulty], ks))
    return groups


def _metrics(group: str, scores: Sequence[SampleScore], ks: Sequence[int]) -> SampleMetrics:
    samples = [score.samples for score in scores]
    return SampleMetrics(
        group=group,
        problems=len(scores),
        samples=(min(samples), max(samples)),
        pass_at={
            k: mean_over_problems((pass_at_k(score.samples, score.correct, k) for score in scores), RATES) for k in ks
        },
        distinct=mean_over_problems(float(score.distinct) for score in scores),
        distinct_correct=mean_over_problems(float(score.distinct_correct) for score in scores),
    )
