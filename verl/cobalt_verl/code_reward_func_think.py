"""veRL's reward function: has the response's program judged, and computes the paper's reward (`cobalt.reward`).

veRL loads this file by its path (`reward.custom_reward_function`); `compute_score` is awaited once for each response,
many at a time. A failure of the judge is raised, and stops the run (`cobalt_verl.scoring`).
"""

import time
from collections.abc import Mapping
from typing import Any

from cobalt.reward import RewardSettings, program_to_judge
from cobalt_verl.judging import JUDGE_ATTEMPTS
from cobalt_verl.scoring import VERDICT_AT, failures_recorded, running_judge, score, suite_of


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any],
    judge_attempts: int = JUDGE_ATTEMPTS,
    **settings: Any,
) -> dict[str, Any]:
    """The reward of one response, and all its parts.

    Args:
        data_source: Not used; veRL groups its metrics by it.
        solution_str: The response as decoded.
        ground_truth: All tests of the problem, as JSON (`TestSuite.to_json`).
        extra_info: `split` and `prev_best_pass_rate` of the row.
        judge_attempts: Number of times that a program is sent before the judge's failure is raised.
        settings: Fields of `RewardSettings`.

    Returns:
        See `cobalt_verl.scoring.score`; in training also `cobalt_verl.scoring.VERDICT_AT`.

    Raises:
        CobaltError: the judge failed, or the row is malformed.
    """
    with failures_recorded(extra_info.get("id")):
        chosen = RewardSettings(**settings)
        program = program_to_judge(solution_str, chosen)
        started = time.perf_counter()
        judge = running_judge(judge_attempts)
        result = None if program is None else await judge.judge(program, suite_of(ground_truth))
        parts = score(solution_str, result, extra_info, time.perf_counter() - started, chosen)
        return parts | {VERDICT_AT: time.time()} if extra_info.get("split") == "train" else parts
