"""Single-turn generation in which each sample has a seed of its own, so that a training run can be repeated.

veRL's `rollout.full_determinism` gives every request one seed: the samples of a prompt would all be the same.

The loop also computes the reward, by the reward function of this project and in the process that has the response. veRL
would send each response to a process for rewards, which takes as long on a CPU as judging it. Another reward function
(`reward.custom_reward_function.path`) is left to veRL.
"""

import hashlib
from pathlib import Path
from typing import Any

import ray.serve  # noqa: F401  # which takes seconds: now, and not when the first program is judged
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from cobalt.reward import RewardSettings
from cobalt_verl.scoring import JUDGE_ATTEMPTS, judged_score

REWARD_FUNCTION = Path(__file__).resolve().parents[2] / "code_reward_func_think.py"
"""The file with this project's reward function."""


class SeededSingleTurnLoop(SingleTurnAgentLoop):  # type: ignore[misc]  # veRL is not typed
    """veRL's loop; the seed follows from `data.seed`, the step, the prompt and the number of the sample."""

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput:
        """Generate one response, and have it judged.

        Raises:
            CobaltError: the judge failed, or the row is broken.
        """
        seed = sample_seed(self.data_config.seed, fields["global_steps"], fields["index"], fields["session_id"])
        output = await super().run(sampling_params | {"seed": seed}, **fields)
        function = self.config.reward.custom_reward_function
        if Path(function.path) == REWARD_FUNCTION:
            options = dict(function.reward_kwargs)
            attempts = options.pop("judge_attempts", JUDGE_ATTEMPTS)
            parts = await judged_score(
                self.tokenizer.decode(output.response_ids, skip_special_tokens=True),
                fields["reward_model"]["ground_truth"],
                fields["extra_info"],
                attempts,
                RewardSettings(**options),
            )
            output.reward_score = parts["score"]
            output.extra_fields["reward_extra_info"] = parts
        return output


def sample_seed(*parts: int) -> int:
    """A seed for vLLM (31 bits), determined by the numbers."""
    digest = hashlib.sha256(",".join(map(str, map(int, parts))).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
