"""Hidden-test evaluation: how good each turn of a conversation was.

Every program of every conversation is judged on the hidden tests, and Pass@1 by turn is estimated from them. The
program of a turn is the one that the public tests judged: that of the raw response, or, in files without
`raw_responses`, of the assistant message. Tables and plots are made elsewhere, from `TurnMetrics`.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cobalt.errors import UserError
from cobalt.judge import Judge
from cobalt.manifest import companion_path
from cobalt.metrics import bootstrap_interval, pass_at_k
from cobalt.problem import Problem
from cobalt.records import RecordFile, read_records
from cobalt.rollout.judging import ProblemJudge
from cobalt.rollout.runner import check_concurrency, run_all


@dataclass(frozen=True, slots=True)
class TurnMetrics:
    """What the hidden tests say of one turn; rates lie between 0 and 1.

    Attributes:
        turn: 0 is the first program.
        pass_at_1: Unbiased Pass@1, averaged over problems.
        interval: 95 % bootstrap interval of it over problems.
        pass_rate: Share of hidden tests passed, averaged over samples and then problems.
        relative_change: (pass_at_1 - that of turn 0) / that of turn 0; None where turn 0 is zero.
    """

    turn: int
    pass_at_1: float
    interval: tuple[float, float]
    pass_rate: float
    relative_change: float | None


async def run_evaluation(input_file: Path, output_file: Path, judge: Judge, *, concurrency: int = 64) -> int:
    """Judge a multi-turn file on its hidden tests and write its records with two more fields.

    `all_pass_rates` [sample][turn] is the share of hidden tests passed (1.0: all of them); `hidden_verdicts`
    [sample][turn][test] is the kind of each verdict.

    Returns:
        How many problems failed.

    Raises:
        UserError: bad input, or a result that another input made.
        ServiceDown: the judge is not running.
    """
    check_concurrency(concurrency)
    trajectories = [_read_trajectories(input_file, record) for record in read_records(input_file)]
    if not trajectories:
        raise UserError(f"{input_file}: the file holds no record")

    async def work(item: "_Trajectories") -> dict[str, Any]:
        judge_response = ProblemJudge(judge, item.problem.hidden_tests)
        results = await asyncio.gather(
            *(asyncio.gather(*(judge_response(text) for text in responses)) for responses in item.responses)
        )
        return dict(item.problem.record) | {
            "all_pass_rates": [[result.pass_rate for result in turns] for turns in results],
            "hidden_verdicts": [
                [[verdict.kind.value for verdict in result.verdicts] for result in turns] for turns in results
            ],
        }

    with RecordFile(output_file) as output:
        arguments: dict[str, Any] = {"stage": "evaluation"}
        if not output.done.issuperset(item.problem.id for item in trajectories):
            arguments["judge"] = dict(await judge.describe())  # a finished result is read without a judge
        return await run_all(
            trajectories,
            lambda item: item.problem.id,
            work,
            output,
            arguments=arguments,
            inputs=[input_file],
            concurrency=concurrency,
            description="hidden tests",
        )


def turn_metrics(records: Sequence[Mapping[str, Any]], source: str, *, seed: int = 0) -> list[TurnMetrics]:
    """Pass@1 by turn from evaluated records, for any number of turns and samples.

    Args:
        records: Records with `all_pass_rates` [sample][turn].
        source: Where they are from, for messages.
        seed: Seed of the bootstrap.

    Raises:
        UserError: no records, a record without `all_pass_rates`, or differing numbers of turns.
    """
    if not records:
        raise UserError(f"{source}: no evaluated record")
    turns: int | None = None
    for record in records:
        rates = record.get("all_pass_rates")
        if not rates or not all(isinstance(row, list) and row for row in rates):
            raise UserError(
                f"{source}: record {record.get('id')!r} has no 'all_pass_rates': run eval_multi_turn.py first"
            )
        for row in rates:
            turns = len(row) if turns is None else turns
            if len(row) != turns:
                raise UserError(
                    f"{source}: record {record.get('id')!r} has {len(row)} turns where another has {turns}:"
                    " evaluate runs with the same number of turns together"
                )
    assert turns is not None
    metrics: list[TurnMetrics] = []
    for turn in range(turns):
        passes, rates_of_turn = [], []
        for record in records:
            column = [row[turn] for row in record["all_pass_rates"]]
            passes.append(pass_at_k(len(column), sum(rate == 1.0 for rate in column), 1))
            rates_of_turn.append(sum(column) / len(column))
        value = sum(passes) / len(passes)
        first = metrics[0].pass_at_1 if metrics else value
        metrics.append(
            TurnMetrics(
                turn=turn,
                pass_at_1=value,
                interval=bootstrap_interval(passes, seed=seed),
                pass_rate=sum(rates_of_turn) / len(rates_of_turn),
                relative_change=(value - first) / first if first > 0 else None,
            )
        )
    return metrics


def write_metrics(metrics: Sequence[TurnMetrics], result: Path) -> None:
    """Write the figures beside an evaluated result file, as `<result>.metrics.json`."""
    content = {"turns": [asdict(row) for row in metrics]}
    companion_path(result, ".metrics.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Trajectories:
    """A problem and the responses of its conversations, [sample][turn]."""

    problem: Problem
    responses: list[list[str]]


def _read_trajectories(path: Path, record: Mapping[str, Any]) -> _Trajectories:
    """Read one multi-turn record, ours or the authors'."""
    try:
        problem = Problem.parse(record)
        if "raw_responses" in record:
            turns = record["raw_responses"]
            if len({len(turn) for turn in turns}) > 1:
                raise UserError("field 'raw_responses' has turns with different numbers of samples")
            responses = [list(sample) for sample in zip(*turns, strict=True)]
        elif "conversations" in record:
            responses = [
                [message["content"] for message in conversation if message["role"] == "assistant"]
                for conversation in record["conversations"]
            ]
        else:
            raise UserError("it has neither 'raw_responses' nor 'conversations': run a multi-turn script first")
        if not responses or not all(responses):
            raise UserError("it holds no conversation")
        if not all(isinstance(text, str) for sample in responses for text in sample):
            raise UserError("it has a response that is not a string")
    except UserError as error:
        raise UserError(f"{path}: record {record.get('id')!r}: {error}") from None
    except (KeyError, TypeError):
        raise UserError(f"{path}: record {record.get('id')!r} is not a multi-turn record") from None
    return _Trajectories(problem, responses)
