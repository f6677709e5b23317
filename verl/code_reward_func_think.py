"""veRL's reward function: has the response's program judged by the running service, and computes the paper's reward.

veRL loads this file by its path (`reward.custom_reward_function`) and awaits `compute_score` once for each response,
many at a time. `cobalt.reward` computes the reward itself. A failure of the judge is raised, and stops the run
(`cobalt_verl.trainers.replay_buffer`); there is no reward for it.
"""

import functools
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray.serve  # noqa: F401  # takes seconds: imported while veRL starts, not at the first reward

from cobalt.errors import CobaltError
from cobalt.judge import RememberingJudge, ServeJudge
from cobalt.judge.verdict import VerdictKind
from cobalt.problem import TestSuite
from cobalt.reward import RewardSettings, compute_reward, program_to_judge


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any],
    judge_attempts: int = 14,
    **settings: Any,
) -> dict[str, float]:
    """The reward of one response, and all its parts.

    Args:
        data_source: Not used; veRL groups its metrics by it.
        solution_str: The response as decoded.
        ground_truth: All tests of the problem, as JSON (`TestSuite.to_json`).
        extra_info: `split` and `prev_best_pass_rate` of the row.
        judge_attempts: How often a program is sent before the judge's failure is raised.
        settings: Fields of `RewardSettings`.

    Returns:
        `score`, the reward (in validation 1.0 or 0.0); `acc`, whether all tests passed; every part of the reward;
        `judge_seconds`, wall time until the verdict (none for a program that this process has had judged before on
        the same tests), `queue_seconds` and `run_seconds` that the judge took for it; `verdict_KIND`, the
        share of tests with that verdict.

    Raises:
        CobaltError: the judge failed, or the row is malformed.
    """
    try:
        chosen = RewardSettings(**settings)
        program = program_to_judge(solution_str, chosen)
        started = time.perf_counter()
        result = None if program is None else await _judge(judge_attempts).judge(program, _suite(ground_truth))
        seconds = time.perf_counter() - started
        reward = compute_reward(
            solution_str,
            None if result is None else result.pass_rate,
            float(extra_info.get("prev_best_pass_rate") or 0.0),
            chosen,
        )
    except CobaltError as error:
        _leave_reason(f"problem {extra_info.get('id')}: {error}")
        raise
    parts = reward.to_metrics()
    kinds = Counter(verdict.kind for verdict in result.verdicts) if result else Counter()
    return {
        "score": parts.pop("reward") if extra_info.get("split") == "train" else reward.validation_score,
        "acc": parts.pop("solved"),
        **parts,
        "judge_seconds": seconds,
        "queue_seconds": result.queue_seconds if result else 0.0,
        "run_seconds": result.run_seconds if result else 0.0,
        **{
            f"verdict_{kind}": kinds[kind] / max(1, kinds.total())
            for kind in VerdictKind
            if kind != VerdictKind.NO_CODE
        },
    }


@functools.cache
def _judge(attempts: int) -> RememberingJudge:
    return RememberingJudge(ServeJudge(attempts=attempts))


@functools.lru_cache(maxsize=1024)
def _suite(ground_truth: str) -> TestSuite:
    """A problem's tests, read once for all its samples."""
    return TestSuite.parse(ground_truth)


def _leave_reason(text: str) -> None:
    """Write the reason for the process that stops the run; only the first reason is kept."""
    path = os.environ.get("COBALT_FAILURE_FILE")
    if path and not Path(path).exists():
        Path(path).write_text(text + "\n", encoding="utf-8")
