"""Hidden-test evaluation: how good each turn of a conversation was.

Every program of every conversation is judged on the hidden tests, and Pass@1 by turn is estimated from them. The
program of a turn is the one that the public tests judged (`Turn.program`). The input is read a problem at a time, so
that memory does not grow with it. Tables and plots are made elsewhere, from `TurnMetrics`.
"""

import asyncio
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from cobalt.episode.episode import judge_response
from cobalt.episode.record import encode_evaluation, read_trajectories
from cobalt.episode.trajectory import ProblemTrajectories, Trajectory, Turn
from cobalt.judge import Judge, RememberingJudge
from cobalt.judge.opening import using_judge
from cobalt.problems.problem import ProblemId, TestSuite
from cobalt.rollout.metrics import RATES, bootstrap_interval, pass_at_k
from cobalt.rollout.protocols import Ks, Mean, Outcomes, check_k, collecting, protocol_figures
from cobalt.stage.atomic import replacing
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import companion_path
from cobalt.stage.run import Concurrency, Each, Input, Outcome, Output, check_concurrency, quoted, stage
from cobalt.stage.service_flags import JudgeFlags


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
class ProblemScore:
    """Results on hidden tests of one problem, by turn; rates lie between 0 and 1.

    Attributes:
        pass_at_1: Unbiased Pass@1.
        pass_rate: Share of hidden tests passed, averaged over samples.
    """

    pass_at_1: list[float]
    pass_rate: list[float]


async def evaluate(trajectories: Sequence[Trajectory], judge: Judge) -> list[Trajectory]:
    """The trajectories of a problem with each program's result on the hidden tests.

    Raises:
        InfrastructureError: the judge failed.
    """
    remembering = RememberingJudge(judge)  # samples and turns of a problem repeat programs

    async def judged(turn: Turn, tests: TestSuite) -> Turn:
        result = await judge_response(remembering, turn.response, tests)
        kinds = tuple(verdict.kind for verdict in result.verdicts)
        return replace(turn, hidden_pass_rate=result.pass_rate, hidden_verdicts=kinds)

    async def evaluated(trajectory: Trajectory) -> Trajectory:
        turns = (judged(turn, trajectory.problem.hidden_tests) for turn in trajectory.turns)
        return replace(trajectory, turns=tuple(await asyncio.gather(*turns)))

    return await asyncio.gather(*map(evaluated, trajectories))


@dataclass(frozen=True)
class TurnsSettings(JudgeFlags):
    """Judge every turn of a multi-turn result on the hidden tests."""

    input_file: Input
    """Result of run_multi_turn_*.py (JSONL)."""
    output_file: Output
    """The same records with their hidden pass rates (JSONL); the figures are next to it, as .metrics.json."""
    k: Ks = ()
    concurrency: Concurrency = 64

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        check_concurrency(self.concurrency)
        check_k(self.k or ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnsOutcome(Outcome):
    """What `evaluate_turns` did.

    Attributes:
        metrics: The figures by turn.
        figures: Those of the other measures by name, each by turn (`cobalt.rollout.protocols`).
    """

    metrics: Sequence[TurnMetrics]
    figures: Mapping[str, Sequence[Mean]]


@stage
async def evaluate_turns(settings: TurnsSettings, judge: Judge | None = None) -> TurnsOutcome:
    """Judge a multi-turn file on its hidden tests, and measure it.

    Writes its records with the fields of `encode_evaluation`, and the figures next to them, as .metrics.json. A
    malformed record ends the run when it is reached; what is finished by then is kept. `judge` None: that of the
    settings, which a finished result does not need.

    Raises:
        UserError: bad input, or a result that another input made.
        ServiceDown: the judge is not running.
    """
    result = settings.output_file
    async with using_judge(judge, settings) as judging:

        async def work(group: ProblemTrajectories) -> dict[str, Any]:
            return dict(group.problem.record) | encode_evaluation(await evaluate(group.trajectories, judging))

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
    outcomes: list[Outcomes] = []
    metrics = turn_metrics(collecting(read_trajectories(result, unfinished=True), outcomes), str(result))
    figures = protocol_figures(outcomes, settings.k or ())
    protocols = {name: [asdict(mean) for mean in means] for name, means in figures.items()}
    write_metrics(metrics, result, {"protocols": protocols})
    return TurnsOutcome(metrics=metrics, figures=figures, failed=failed, **evaluated(result))


def evaluated(result: Path) -> dict[str, Any]:
    """What was written by an evaluation, and what comes next, by the names of `Outcome`."""
    run = result.parent if result.name == "evaluation.jsonl" and result.parent.name else result  # tables name it so
    return {
        "wrote": f"{result}, and its figures in {result.with_suffix('.metrics.json')}",
        "next": f"cobalt view {quoted(run)} -o {quoted(result.with_name('view.html'))}, or to compare runs:"
        f" cobalt report {quoted(run)} OTHER -o report",
    }


def problem_score(group: ProblemTrajectories) -> ProblemScore:
    """The figures of one evaluated problem.

    Raises:
        UserError: the problem is not evaluated.
    """
    by_turn = list(zip(*(trajectory.hidden_pass_rates for trajectory in group.trajectories), strict=True))
    return ProblemScore(
        [pass_at_k(len(rates), sum(rate == 1.0 for rate in rates), 1) for rates in by_turn],
        [sum(rates) / len(rates) for rates in by_turn],
    )


def turn_metrics(groups: Iterable[ProblemTrajectories], source: str) -> list[TurnMetrics]:
    """Pass@1 by turn of evaluated problems, for any number of turns and samples; see `average`."""
    scores: dict[ProblemId, ProblemScore] = {}
    for group in groups:
        with naming(f"{source}: record {group.problem.id!r}"):
            scores[group.problem.id] = problem_score(group)
    return average(scores, source)


def average(scores: Mapping[ProblemId, ProblemScore], source: str, *, seed: int = 0) -> list[TurnMetrics]:
    """Average the figures of problems, by turn.

    Args:
        scores: The figures of each problem.
        source: The file they are from, for error messages.
        seed: Seed of the bootstrap.

    Raises:
        UserError: no problem, or differing numbers of turns.
    """
    if not scores:
        raise UserError(f"{source}: no evaluated record")
    turns = len(next(iter(scores.values())).pass_at_1)
    for identifier, score in scores.items():
        if len(score.pass_at_1) != turns:
            raise UserError(
                f"{source}: record {identifier!r} has {len(score.pass_at_1)} turns where another has {turns}:"
                " evaluate runs with the same number of turns together"
            )
    metrics: list[TurnMetrics] = []
    for turn in range(turns):
        passes = [score.pass_at_1[turn] for score in scores.values()]
        rates = [score.pass_rate[turn] for score in scores.values()]
        value = sum(passes) / len(passes)
        first = metrics[0].pass_at_1 if metrics else value
        metrics.append(
            TurnMetrics(
                turn=turn,
                pass_at_1=value,
                interval=bootstrap_interval(passes, seed=seed, bounds=RATES),
                pass_rate=sum(rates) / len(rates),
                relative_change=(value - first) / first if first > 0 else None,
                problems=len(passes),
            )
        )
    return metrics


def write_metrics(metrics: Sequence[TurnMetrics], result: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write the figures, and more of them by name, next to an evaluated result file, as `<result>.metrics.json`."""
    content = {"turns": [asdict(row) for row in metrics]} | dict(more or {})
    with replacing(companion_path(result, ".metrics.json")) as handle:
        handle.write((json.dumps(content, indent=2) + "\n").encode())
