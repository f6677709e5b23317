"""Single-turn generation in which each sample has a seed of its own, so that a training run can be repeated.

veRL's `rollout.full_determinism` gives every request one seed: the samples of a prompt would all be the same.
"""

import hashlib
from typing import Any

from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class SeededSingleTurnLoop(SingleTurnAgentLoop):  # type: ignore[misc]  # veRL is not typed
    """veRL's loop; the seed follows from `data.seed`, the step, the prompt and the number of the sample."""

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput:
        """Generate one response."""
        seed = sample_seed(self.data_config.seed, fields["global_steps"], fields["index"], fields["session_id"])
        return await super().run(sampling_params | {"seed": seed}, **fields)


def sample_seed(*parts: int) -> int:
    """A seed for vLLM (31 bits), determined by the numbers."""
    digest = hashlib.sha256(",".join(map(str, map(int, parts))).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
