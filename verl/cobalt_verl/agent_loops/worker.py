"""The processes that run agent loops; the rewards are computed in them.

veRL sends each response, with its row and all tests of its problem, to another process for its reward. Here
`reward.num_workers` is 0; above 0, or with a reward model, rewards go veRL's way.
"""

import asyncio
import inspect
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ


class RewardingWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc]  # veRL is not typed
    """One process; see the module."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.reward_function = get_custom_reward_fn(self.config)

    async def _compute_score(self, outputs: Sequence[AgentLoopOutput], kwargs: Mapping[str, Any]) -> None:
        """Give the last output its reward, unless its loop has."""
        final = outputs[-1]
        if self.reward_loop_worker_handles != []:  # there are processes for rewards, or a reward model
            await super()._compute_score(outputs, kwargs)
        elif final.reward_score is None:
            started = time.perf_counter()
            final.reward_score, final.extra_fields["reward_extra_info"] = await self._rewarded(final, kwargs)
            final.metrics.compute_score = time.perf_counter() - started

    async def _rewarded(self, output: AgentLoopOutput, fields: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """The reward of a response and its parts, by the configured function, which may be a coroutine."""
        arguments = {
            "data_source": fields["data_source"],
            "solution_str": self.tokenizer.decode(output.response_ids, skip_special_tokens=True),
            "ground_truth": fields["reward_model"]["ground_truth"],
            "extra_info": {**fields["extra_info"], **output.extra_fields, "num_turns": output.num_turns},
        }
        if inspect.iscoroutinefunction(self.reward_function):
            reward = await self.reward_function(**arguments)
        else:
            reward = await asyncio.to_thread(self.reward_function, **arguments)
        return (reward["score"], dict(reward)) if isinstance(reward, dict) else (reward, {"acc": reward})


class AgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]  # veRL is not typed
    """VeRL's manager of agent loops, with processes of this project."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.agent_loop_workers_class = ray.remote(RewardingWorker)
