"""The reward of a response in veRL's processes: the running judge, the paper's reward, and how a failure stops the run.

The reward function of single-turn rollouts (`code_reward_func_think.py`) and the agent loop of several turns use it.
There is no reward for a failure of the judge: it is raised, and the run stops (`cobalt_verl.trainers.replay_buffer`).
"""

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cobalt.judge import ExecResult, RememberingJudge
from cobalt.judge.verdict import VerdictKind
from cobalt.problems.problem import TestSuite
from cobalt.reward import RewardSettings, compute_reward
from cobalt.stage.errors import CobaltError
from cobalt_verl.judging import JUDGE_ATTEMPTS, ProcessJudge, ServeJudge

VERDICT_AT = "verdict_at"
"""The part of a reward of a training step that says when it was computed, in seconds since 1970."""

FEEDBACK = "feedback"
"""The part of a reward of a training step that is the judge's feedback on the first failed test; "" without one."""


@functools.cache
def running_judge(attempts: int = JUDGE_ATTEMPTS) -> RememberingJudge:
    """The judge of this process, which remembers the results of the last programs; for one event loop.

    It asks the Ray Serve app that the launcher names on a cluster, or the judge that the environment names
    (`cobalt.judge.opening`); a judge elsewhere gets a program `attempts` times at most.
    """
    app = os.environ.get("COBALT_EVALUATOR")
    return RememberingJudge(ServeJudge(app, attempts=attempts) if app else ProcessJudge(attempts))


@functools.lru_cache(maxsize=1024)
def suite_of(ground_truth: str) -> TestSuite:
    """All tests of a row's problem (`reward_model.ground_truth`), read once for all its samples."""
    return TestSuite.parse(ground_truth)


def score(
    response: str, result: ExecResult | None, extra_info: Mapping[str, Any], seconds: float, settings: RewardSettings
) -> dict[str, Any]:
    """The reward of a response, and all its parts.

    Args:
        response: The response as decoded.
        result: The result of its program on all tests; None if it has no program.
        extra_info: `split` and `prev_best_pass_rate` of the row.
        seconds: Wall time until the verdict.
        settings: Of the reward.

    Returns:
        `score`, the reward (in validation 1.0 or 0.0); `acc`, whether all tests passed; every part of the reward;
        `judged_tests`, on how many tests the program was judged; `judge_seconds`, wall time until the verdict,
        `queue_seconds` and `run_seconds` that the judge took for it; `verdict_KIND`, the share of tests with it; in
        training also `FEEDBACK`.

    Raises:
        CobaltError: the row is broken.
    """
    before = float(extra_info.get("prev_best_pass_rate") or 0.0)
    reward = compute_reward(response, None if result is None else result.pass_rate, before, settings)
    parts = reward.to_metrics()
    kinds = Counter(verdict.kind for verdict in result.verdicts) if result else Counter()
    in_training = extra_info.get("split") == "train"
    return {
        "score": parts.pop("reward") if in_training else reward.validation_score,
        "acc": parts.pop("solved"),
        **parts,
        "judged_tests": float(kinds.total()),
        "judge_seconds": seconds,
        "queue_seconds": result.queue_seconds if result else 0.0,
        "run_seconds": result.run_seconds if result else 0.0,
        **{
            f"verdict_{kind}": kinds[kind] / max(1, kinds.total())
            for kind in VerdictKind
            if kind != VerdictKind.NO_CODE
        },
        **({FEEDBACK: (result and result.first_failure()) or ""} if in_training else {}),
    }


@contextlib.contextmanager
def failures_recorded(problem: object = None) -> Iterator[None]:
    """Leave the reason of a failure inside, about a problem or none, for the process that stops the run.

    The first reason counts.
    """
    try:
        yield
    except CobaltError as error:
        path = os.environ.get("COBALT_FAILURE_FILE")
        if path and not Path(path).exists():
            about = "" if problem is None else f"problem {problem}: "
            Path(path).write_text(f"{about}{error}\n", encoding="utf-8")
        raise
