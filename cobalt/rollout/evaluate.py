"""Evaluation of results: how good programs are on the hidden tests, with figures and records for reports.

| result | judged here | figures |
|---|---|---|
| multi turn | every program of every conversation, on the hidden tests | Pass@1 and other measures, by turn |
| single turn | nothing: its records have the result of each sample on all tests | pass@k and diversity, by difficulty |

The program of a turn is the one that the public tests judged (`Turn.program`); it is right if it passes every hidden
test. Both write records of evaluated trajectories, those of a single-turn result with one turn, which reports and the
viewer read alike. The input is read a problem at a time, so that memory does not grow with it. Tables and plots are
made elsewhere.
"""

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from cobalt.episode.episode import judge_response
from cobalt.episode.record import (
    decode_first_turns,
    decode_results,
    encode_evaluation,
    encode_multi_turn,
    read_trajectories,
)
from cobalt.episode.trajectory import ProblemTrajectories, Trajectory, Turn
from cobalt.judge import ExecResult, Judge, RememberingJudge
from cobalt.judge.opening import using_judge
from cobalt.problems.problem import Problem, TestSuite
from cobalt.rollout.diversity import distinct_programs
from cobalt.rollout.protocols import (
    Ks,
    Mean,
    Outcomes,
    by_difficulty,
    check_k,
    mean_over_problems,
    outcomes_of,
    pass_at,
    protocol_figures,
)
from cobalt.stage.atomic import replacing
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import companion_path
from cobalt.stage.records import RecordId, iterate_records
from cobalt.stage.run import Concurrency, Each, Input, Outcome, Output, check_ranges, quoted, stage, whole
from cobalt.stage.service_flags import JudgeFlags

USUAL_K = (1, 10)


@dataclasses.dataclass(frozen=True, slots=True)
class TurnMetrics:
    """Results on hidden tests at one turn; rates lie between 0 and 1.

    Attributes:
        turn: 0 is the first program.
        pass_at_1: Unbiased Pass@1, averaged over problems.
        interval: 95 % bootstrap interval of `pass_at_1` over problems.
        pass_rate: Share of hidden tests passed, averaged over samples and then problems.
        relative_change: (pass_at_1 - that of turn 0) / that of turn 0; None where turn 0 is zero.
        problems: Number of problems that the figures are averages over; None: not known.
    """

    turn: int
    pass_at_1: float
    interval: tuple[float, float]
    pass_rate: float
    relative_change: float | None
    problems: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SampleMetrics:
    """The figures of a group of problems.

    Attributes:
        group: A difficulty, or "all".
        problems: Number of problems.
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


async def evaluate(trajectories: Sequence[Trajectory], judge: Judge) -> list[Trajectory]:
    """The trajectories of a problem with each program's result on the hidden tests; raises as the judge."""
    remembering = RememberingJudge(judge)  # samples and turns of a problem repeat programs

    async def judged(turn: Turn, tests: TestSuite) -> Turn:
        return _with_hidden(turn, await judge_response(remembering, turn.response, tests))

    async def evaluated(trajectory: Trajectory) -> Trajectory:
        turns = (judged(turn, trajectory.problem.hidden_tests) for turn in trajectory.turns)
        return replace(trajectory, turns=tuple(await asyncio.gather(*turns)))

    return await asyncio.gather(*map(evaluated, trajectories))


def _with_hidden(turn: Turn, result: ExecResult) -> Turn:
    kinds = tuple(verdict.kind for verdict in result.verdicts)
    return replace(turn, hidden_pass_rate=result.pass_rate, hidden_verdicts=kinds)


@dataclass(frozen=True)
class TurnsSettings(JudgeFlags):
    """Judge every turn of a multi-turn result on the hidden tests; print Pass@1 by turn.

    Programs are judged in this process, or behind a URL (--judge_url). Running the same command again resumes, and
    prints the table of a finished result without judging anything.
    """

    input_file: Input
    """Result of run_multi_turn_*.py (JSONL)."""
    output_file: Output
    """The same records with their hidden pass rates (JSONL); the figures are next to it, as .metrics.json."""
    k: Ks = ()
    concurrency: Concurrency = 64

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        check_ranges(self, ("concurrency", self.concurrency >= 1, "1 or more"))
        check_k(self.k)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnsOutcome(Outcome):
    """The figures by turn, and those of the other measures (`cobalt.rollout.protocols`) by name, each by turn."""

    metrics: Sequence[TurnMetrics]
    figures: Mapping[str, Sequence[Mean]]


@stage
async def evaluate_turns(settings: TurnsSettings, judge: Judge | None = None) -> TurnsOutcome:
    """Judge a multi-turn file on its hidden tests, and measure it.

    Writes its records with the fields of `encode_evaluation`, and the figures next to them, as .metrics.json. A
    malformed record ends the run when it is reached; what is finished by then is kept. A finished result needs no
    judge.

    Raises UserError: bad input, or a result that another input made. Raises ServiceDown: the judge is not running.
    """
    result = settings.output_file
    outcomes: dict[RecordId, Outcomes] = {}
    async with using_judge(judge, settings) as judging:

        async def work(group: ProblemTrajectories) -> dict[str, Any]:
            trajectories = tuple(await evaluate(group.trajectories, judging))
            outcomes[group.problem.id] = outcomes_of(replace(group, trajectories=trajectories))
            return dict(group.problem.record) | encode_evaluation(trajectories)

        with Each(
            result, {"stage": "evaluation"}, [settings.input_file], services={"judge": judging.describe}
        ) as output:
            failed = await output.make(
                read_trajectories(settings.input_file),
                lambda group: group.problem.id,
                work,
                concurrency=settings.concurrency,
                description="hidden tests",
            )
    if output.done:  # by an earlier run
        outcomes = {group.problem.id: outcomes_of(group) for group in read_trajectories(result, unfinished=True)}
    ordered = [outcomes[identifier] for identifier in output.ids]
    metrics = turn_metrics(ordered, str(result))
    figures = protocol_figures(ordered, settings.k)
    protocols = {name: [asdict(mean) for mean in means] for name, means in figures.items()}
    write_metrics(metrics, result, {"protocols": protocols})
    return TurnsOutcome(metrics=metrics, figures=figures, failed=failed, **evaluated(result))


def evaluated(result: Path) -> dict[str, Any]:
    """Files that an evaluation wrote, and the command that comes next, by the names of `Outcome`."""
    run = result.parent if result.name == "evaluation.jsonl" and result.parent.name else result  # tables name it so
    return {
        "wrote": f"{result}, and its figures in {result.with_suffix('.metrics.json')}",
        "next": f"cobalt view {quoted(run)} -o {quoted(result.with_name('view.html'))}, or to compare runs:"
        f" cobalt report {quoted(run)} OTHER -o report",
    }


def turn_metrics(outcomes: Sequence[Outcomes], source: str) -> list[TurnMetrics]:
    """Pass@1 by turn of evaluated problems; `source` is their file, for messages.

    Raises UserError: there is no problem, or they have different numbers of turns.
    """
    with naming(source):
        passes = pass_at(outcomes, 1)
    first = passes[0].value
    rates = [[sum(rates) / len(rates) for rates in zip(*one.hidden, strict=True)] for one in outcomes]
    return [
        TurnMetrics(
            turn=turn,
            pass_at_1=mean.value,
            interval=mean.interval,
            pass_rate=sum(of_turn) / len(of_turn),
            relative_change=(mean.value - first) / first if first > 0 else None,
            problems=len(of_turn),
        )
        for turn, (mean, of_turn) in enumerate(zip(passes, zip(*rates, strict=True), strict=True))
    ]


def write_metrics(metrics: Sequence[TurnMetrics], result: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write the figures, and more of them by name, next to an evaluated result file, as `<result>.metrics.json`."""
    content = {"turns": [asdict(row) for row in metrics]} | dict(more or {})
    with replacing(companion_path(result, ".metrics.json")) as handle:
        handle.write((json.dumps(content, indent=2) + "\n").encode())


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
    .metrics.json. Raises UserError: bad input, or a result that another input made; as for `sample_metrics`.
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
        seen = result.select(public)
        judged = replace(turn, public_pass_rate=seen.pass_rate, public_result=seen)
        trajectories.append(Trajectory(problem, sample, [], (_with_hidden(judged, result.select(hidden)),)))
    return record | encode_multi_turn(trajectories, "benign") | encode_evaluation(trajectories)


def count_distinct(group: ProblemTrajectories) -> Outcomes:
    """The outcomes of an evaluated problem, with the number of different programs in its first turns.

    Responses without a program do not count. Raises UserError: the problem is not evaluated.
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

    `outcomes` are those of `count_distinct`, and `ks` the k of pass@k; empty: those of 1 and 10 for which every problem
    has enough samples. Raises UserError: there is no problem, a k is below 1, or a problem has fewer samples than it.
    """
    if not outcomes:
        raise UserError("there is no evaluated problem")
    ks = ks or [k for k in USUAL_K if k <= min(one.samples for one in outcomes)]

    def metrics(name: str, group: Sequence[Outcomes]) -> SampleMetrics:
        samples = [one.samples for one in group]
        pairs = (map(float, one.distinct) for one in group if one.distinct is not None)
        counts = [mean_over_problems(column) for column in zip(*pairs, strict=True)]
        return SampleMetrics(
            name, len(group), (min(samples), max(samples)), {k: pass_at(group, k)[0] for k in ks}, *counts
        )

    return [metrics(name, group) for name, group in by_difficulty(outcomes).items()]
