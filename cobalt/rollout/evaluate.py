"""Hidden-test evaluation: how good each turn of a conversation was.

Every program of every conversation is judged on the hidden tests, and Pass@1 by turn is estimated from them. The
program of a turn is the one that the public tests judged (`Turn.program`). The input is read a problem at a time, so
that memory does not grow with it. Tables and plots are made elsewhere, from `TurnMetrics`.
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
from cobalt.episode.record import encode_evaluation, read_trajectories
from cobalt.episode.trajectory import ProblemTrajectories, Trajectory, Turn
from cobalt.judge import Judge, RememberingJudge
from cobalt.judge.opening import using_judge
from cobalt.problems.problem import TestSuite
from cobalt.rollout.protocols import Ks, Mean, Outcomes, check_k, outcomes_of, pass_at, protocol_figures
from cobalt.stage.atomic import replacing
from cobalt.stage.errors import naming
from cobalt.stage.manifest import companion_path
from cobalt.stage.records import RecordId
from cobalt.stage.run import Concurrency, Each, Input, Outcome, Output, check_ranges, quoted, stage
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

    Raises:
        UserError: bad input, or a result that another input made.
        ServiceDown: the judge is not running.
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
    """What was written by an evaluation, and what comes next, by the names of `Outcome`."""
    run = result.parent if result.name == "evaluation.jsonl" and result.parent.name else result  # tables name it so
    return {
        "wrote": f"{result}, and its figures in {result.with_suffix('.metrics.json')}",
        "next": f"cobalt view {quoted(run)} -o {quoted(result.with_name('view.html'))}, or to compare runs:"
        f" cobalt report {quoted(run)} OTHER -o report",
    }


def turn_metrics(outcomes: Sequence[Outcomes], source: str) -> list[TurnMetrics]:
    """Pass@1 by turn, for any number of turns and samples.

    Args:
        outcomes: The evaluated problems.
        source: The file they are from, for error messages.

    Raises:
        UserError: no problem, or differing numbers of turns.
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
