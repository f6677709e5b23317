"""The processes that run agent loops: rewards are computed in them, loops are made once, and rows go on in batches.

VeRL sends each response with its row and its tests to a process for rewards, makes a loop for each sample, and sends
each row on by itself. With short responses that takes more CPU time than the model does. The differences for a user:
`reward.num_workers` is 0, and a loop must keep nothing of a sample. Models that see more than text, and distillation,
go veRL's way, except for the rewards.
"""

import asyncio
import inspect
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap, _agent_loop_registry
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.rollout_trace import rollout_trace_attr

from cobalt_verl.agent_loops.outbox import Outbox, Row

_OF_THE_PROMPT = ("uid", "data_source", "reward_model")
"""What veRL's trainer reads of a prompt's row once there is a reward. A further field costs time at each hand-over."""
_OF_THE_RESPONSE = (
    "prompts", "responses", "response_mask", "rollout_log_probs", "routed_experts", "rm_scores", "num_turns",
    "extra_fields",
)  # fmt: skip
"""What veRL's trainer and workers read of an agent loop's output, without that of models that see more than text."""


class RewardingWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc]  # veRL is not typed
    """One process; see the module."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._loops: dict[str, AgentLoopBase] = {}
        self._outbox = Outbox()
        self._reward = get_custom_reward_fn(self.config)

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: Mapping[str, Any], *, agent_name: str, **fields: Any
    ) -> None:
        """Generate one sample, and send it on with its reward; returns when its rows are in the queue."""
        if self.processor is not None or self.distillation_enabled:
            await super()._run_agent_loop(sampling_params, trajectory, agent_name=agent_name, **fields)
            return
        trace = bool(fields.pop("trace", False))
        if agent_name not in self._loops:
            self._loops[agent_name] = self._make_loop(agent_name)
        self._outbox.begin()
        rows: list[Row] = []
        try:
            with rollout_trace_attr(trace=trace):
                output = await self._loops[agent_name].run(sampling_params, **fields)
            outputs = output if isinstance(output, list) else [output]
            await self._compute_score(outputs, fields)
            rows = rows_of(outputs, fields)
        finally:
            await self._outbox.put("val" if trajectory["validate"] else "train", rows)

    def _make_loop(self, name: str) -> AgentLoopBase:
        entry: Any = OmegaConf.to_container(OmegaConf.create(_agent_loop_registry[name]))
        own = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
        return get_class(entry["_target_"])(
            trainer_config=DictConfigWrap(config=self.config),
            server_manager=self.llm_client,
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.hf_model_type,
            dataset_cls=self.dataset_cls,
            data_config=DictConfigWrap(self.config.data),
            tools=ToolListWrap(self.tools),
            **own,
        )

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
        if inspect.iscoroutinefunction(self._reward):
            found = await self._reward(**arguments)
        else:
            found = await asyncio.to_thread(self._reward, **arguments)
        return (found["score"], dict(found)) if isinstance(found, dict) else (found, {"acc": found})


def rows_of(outputs: Sequence[AgentLoopOutput], fields: Mapping[str, Any]) -> list[Row]:
    """The rows of a sample, all with its reward, and with those fields alone that something reads later.

    Args:
        outputs: Of its loop; the last one has the reward, unless rewards come later (a reward model beside the actor).
        fields: The row of the prompt, with `uid`, `session_id` and `global_steps`, which name the sample.
    """
    final, rows = outputs[-1], []
    if final.reward_score is not None:
        for output in outputs[:-1]:
            output.reward_score = final.reward_score
            output.extra_fields["reward_extra_info"] = final.extra_fields["reward_extra_info"]
    for number, output in enumerate(outputs):
        made = output.as_dict()
        values = {name: made[name] for name in _OF_THE_RESPONSE if name in made}
        # A reward model beside the actor, whose rewards come later, reads the prompt.
        kept = _OF_THE_PROMPT if "rm_scores" in made else (*_OF_THE_PROMPT, "raw_prompt")
        values |= {name: fields[name] for name in kept if name in fields}
        tokens = torch.cat([values["prompts"], values["responses"]])
        values |= {
            "loss_mask": values["response_mask"],
            "input_ids": tokens,
            "position_ids": torch.arange(len(tokens)),
        }
        tag = {
            "status": "success",
            "prompt_len": len(values["prompts"]),
            "response_len": len(values["responses"]),
            "seq_len": len(tokens),
            "global_steps": fields["global_steps"],
            "min_global_steps": output.extra_fields.get("min_global_steps"),
            "max_global_steps": output.extra_fields.get("max_global_steps"),
        }
        rows.append(Row(f"{fields['uid']}_{fields['session_id']}_{number}", values, tag))
    return rows


class AgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]  # veRL is not typed
    """VeRL's manager of agent loops, with processes of this project."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.agent_loop_workers_class = ray.remote(RewardingWorker)
