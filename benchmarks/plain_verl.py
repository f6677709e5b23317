"""What veRL loads for the bare sides of `step.py`: a reward that costs nothing, and a buffer that sleeps briefly."""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.1
"""As long as this project's buffer sleeps; veRL's own sleeps 2 s."""


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **_: Any) -> float:
    """1 for a response with a block of code, else 0: a rule that looks at the text alone, and runs nothing."""
    return float("```" in solution_str)


class QuickReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # veRL is not typed
    """veRL's buffer, which looks for finished prompts as often as this project's does."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, poll_interval=POLL_SECONDS)
