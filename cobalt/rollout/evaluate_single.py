"""Evaluation of single-turn results: pass@k and diversity, over all problems and by difficulty.

A single-turn record already has the result of each sample on all tests, so nothing is judged here. The evaluated record
is one of trajectories with a single turn, which reports and the viewer read like any other. A sample is correct if its
program passes every hidden test.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from cobalt.episode.record import (
    decode_first_turns,
    decode_results,
    encode_evaluation,
    encode_multi_turn,
    read_trajectories,
)
from cobalt.episode.trajectory import ProblemTrajectories, Trajectory
from cobalt.problems.problem import Problem
from cobalt.rollout.diversity import distinct_programs
from cobalt.rollout.evaluate import evaluated, turn_metrics, write_metrics
from cobalt.rollout.protocols import Ks, Mean, Outcomes, by_difficulty, mean_over_problems, outcomes_of, pass_at
from cobalt.stage.errors import UserError, naming
from cobalt.stage.records import iterate_records
from cobalt.stage.run import Input, Outcome, Output, stage, whole

USUAL_K = (1, 10)


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
    k: Ks = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplesOutcome(Outcome):
    """The figures of all problems and of each difficulty (`sample_metrics`)."""

    groups: Sequence[SampleMetrics]


@stage
def evaluate_samples(settings: SamplesSettings) -> SamplesOutcome:
    """Measure a single-turn result.

    Writes its records with the fields of an evaluated multi-turn record of one turn, and the figures next to them, as
    .metrics.json.

    Raises:
        UserError: bad input, or a result that another input made; as for `sample_metrics`.
    """
    source, result = settings.input_file, settings.output_file
    with whole(result, {"stage": "single_turn_evaluation"}, [source]) as output:
        output.write(_evaluated(source, record) for record in iterate_records(source))
    outcomes = [count_distinct(group) for group in read_trajectories(result)]
    groups = sample_metrics(outcomes, settings.k)
    figures = {"single_turn": {"names": "renamed", "groups": [asdict(group) for group in groups]}}
    write_metrics(turn_metrics(outcomes, str(result)), result, figures)
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
        hidden = problem.tests.positions_of(problem.hidden_tests)
        public = problem.tests.positions_of(problem.public_tests) if len(problem.public_tests) else []
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
    return record | encode_multi_turn(trajectories, "benign") | encode_evaluation(trajectories)


def count_distinct(group: ProblemTrajectories) -> Outcomes:
    """The outcomes of an evaluated problem, with the number of different programs in its first turns.

    Responses without a program do not count.

    Raises:
        UserError: the problem is not evaluated.
    """
    outcomes = outcomes_of(group)
    programs = [trajectory.turns[0].program for trajectory in group.trajectories]
    right = [program for program, right in zip(programs, outcomes.right[0], strict=True) if right]
    distinct, distinct_right = (
        distinct_programs(program for program in some if program is not None) for some in (programs, right)
    )
    return replace(outcomes, distinct=(distinct, distinct_right))


def sample_metrics(outcomes: Sequence[Outcomes], ks: Sequence[int] = ()) -> list[SampleMetrics]:
    """The figures of all problems, and then of each difficulty in the order of the problems, if they have one.

    Args:
        outcomes: Of each problem, as `count_distinct` gives them.
        ks: The k of pass@k. Empty: those of 1 and 10 for which every problem has enough samples.

    Raises:
        UserError: there is no problem, a k of `ks` is below 1, or a problem has fewer samples than it.
    """
    if not outcomes:
        raise UserError("there is no evaluated problem")
    fewest = min(one.samples for one in outcomes)
    ks = ks or [k for k in USUAL_K if k <= fewest]
    return [_metrics(name, group, ks) for name, group in by_difficulty(outcomes).items()]


def _metrics(name: str, group: Sequence[Outcomes], ks: Sequence[int]) -> SampleMetrics:
    samples = [one.samples for one in group]
    distinct, distinct_correct = zip(*(one.distinct for one in group if one.distinct is not None), strict=True)
    return SampleMetrics(
        group=name,
        problems=len(group),
        samples=(min(samples), max(samples)),
        pass_at={k: pass_at(group, k)[0] for k in ks},
        distinct=mean_over_problems(list(map(float, distinct))),
        distinct_correct=mean_over_problems(list(map(float, distinct_correct))),
    )
