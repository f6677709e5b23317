"""Parts that veRL loads for the bare sides of `step.py`: two rewards, and a buffer that sleeps briefly."""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.reward_score import prime_code

POLL_SECONDS = 0.1
"""As long as this project's buffer sleeps; veRL's own sleeps 2 s."""


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **_: Any) -> float:
    """1 for a response with a block of code, else 0: a rule that looks at the text alone, and runs nothing."""
    return float("```" in solution_str)


def judged_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **_: Any) -> float:
    """By veRL's own judge, which has no sandbox: 1 if all tests pass, otherwise the share of the first ten."""
    score, _metadata = prime_code.compute_score(solution_str, ground_truth, continuous=True)
    return float(score)


class QuickReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # veRL is not typed
    """veRL's buffer, which looks for finished prompts as often as this project's does."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, poll_interval=POLL_SECONDS)
