"""Trajectories of the agent loop of several turns by veRL's own vLLM server and the real judge; no tests.

    python tests/real_rollout.py MODEL ROWS RESULT

ROWS is a folder with train.parquet (rows of episodes). RESULT is a JSON list with a trajectory for each of the first
rows and each rule for the history: the conversation of each turn, what the server was asked and what it answered, and
the rows to train on. Starts a private Ray as a training run does, and leaves nothing of it behind.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cobalt.training.configuration import TrainingSettings, compose, process_environment
from cobalt.training.launch import worker_python
from cobalt.training.private_ray import private_ray

PROBLEMS = 3
TAKEN = {"prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "extra_fields"}
OVERRIDES = (
    "cobalt.multi_turn.turns=2",
    "data.max_response_length=96",
    "reward.custom_reward_function.reward_kwargs.require_thinking=true",
    # The server alone, with the weights of the model's folder: in training they come from the actor.
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.load_format=auto",
)


def start(model: str, rows: str, result: str) -> int:
    """Start Ray and the judge, and run `generate` in a process with veRL's environment."""
    variables = process_environment(Path(result).parent, on_cpu=True)
    with (
        worker_python(configuration(model, rows), variables, Path(result).with_name("forks.log")) as python,
        private_ray(num_cpus=16, num_gpus=1, object_store_memory=2**29) as addresses,
    ):
        environment = os.environ | variables | addresses | python
        command = [sys.executable, __file__, model, rows, result, "generate"]
        return subprocess.run(command, env=environment, timeout=300, check=False).returncode


def configuration(model: str, rows: str) -> Any:
    """That of a training run of several turns."""
    return compose(TrainingSettings(Path(rows), model, Path(rows), OVERRIDES, data="episodes", rollout="multi_turn"))


def generate(model: str, rows: str, result: str) -> None:
    """Take the episodes, and write them down."""
    import ray
    from pyarrow import parquet
    from transformers import AutoTokenizer
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.workers.rollout.llm_server import LLMServerManager

    from cobalt_verl.agent_loops.multi_turn import MultiTurnLoop

    config = configuration(model, rows)
    variables = process_environment(Path(result).parent, on_cpu=True)
    environment = {"env_vars": variables, "py_executable": os.environ["COBALT_WORKER_PYTHON"]}
    ray.init(runtime_env=environment, log_to_driver=False)
    client = LLMServerManager.create(config).get_client()
    tokenizer = AutoTokenizer.from_pretrained(model)

    class RecordingLoop(MultiTurnLoop):
        """Notes what is rendered, asked and answered."""

        async def _render(self, messages):
            self.conversations.append([dict(message) for message in messages])
            return await super()._render(messages)

    async def episode(row, enable_thinking):
        turns = []

        async def ask(request_id, prompt_ids, sampling_params):
            output = await client.generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
            turns.append({"prompt": list(prompt_ids), "response": list(output.token_ids)})
            return output

        loop = RecordingLoop(
            DictConfigWrap(config), SimpleNamespace(generate=ask), tokenizer, None, None, DictConfigWrap(config.data),
            seeded=True,
        )  # fmt: skip
        loop.conversations = []
        row["extra_info"]["episode"]["enable_thinking"] = enable_thinking
        fields = row | {"raw_prompt": row["prompt"], "global_steps": 1, "session_id": 0}
        sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
        outputs = await loop.run(sampling, index=row["extra_info"]["index"], **fields)
        for turn, conversation in zip(turns, loop.conversations, strict=True):
            turn["conversation"] = conversation
        rows = [output.model_dump(include=TAKEN) for output in outputs]
        return {"enable_thinking": enable_thinking, "turns": turns, "rows": rows}

    async def episodes():
        chosen = parquet.read_table(Path(rows) / "train.parquet").to_pylist()[:PROBLEMS]
        return [await episode(row, thinking) for row in chosen for thinking in (False, True)]

    Path(result).write_text(json.dumps(asyncio.run(episodes())))


if __name__ == "__main__":
    if len(sys.argv) > 4:
        generate(*sys.argv[1:4])
    else:
        sys.exit(start(*sys.argv[1:]))
