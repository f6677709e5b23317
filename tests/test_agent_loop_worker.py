"""The processes of agent loops: who gives a response its reward.

VeRL's queue is a list here; the tests of training runs (`test_training_services.py`) use the real one.
"""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="veRL is not installed (scripts/setup.sh --profile none)")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

FIELDS = {
    "uid": "u",
    "session_id": 3,
    "global_steps": 5,
    "data_source": "pocket",
    "raw_prompt": [{"role": "user", "content": "q"}],
    "reward_model": {"ground_truth": "{}"},
    "extra_info": {"id": "p", "split": "train"},
}


def output_of(response, reward=None):
    from verl.experimental.agent_loop import AgentLoopOutput

    output = AgentLoopOutput(
        prompt_ids=[1, 2], response_ids=response, response_mask=[1] * len(response), num_turns=2, metrics={},
        response_logprobs=[-0.5] * len(response), extra_fields={"min_global_steps": 4, "max_global_steps": 5},
    )  # fmt: skip
    if reward is not None:
        output.reward_score = reward
        output.extra_fields["reward_extra_info"] = {"score": reward}
    return output


async def as_coroutine(**arguments):
    return {"score": 0.5, "seen": arguments}


def as_function(**arguments):
    return {"score": 0.5, "seen": arguments}


@pytest.fixture
def rows(monkeypatch):
    """The rows that a process puts into the queue for the outputs of one sample."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    from cobalt_verl.agent_loops.worker import RewardingWorker

    def put(outputs, reward):
        puts = []

        async def keep(keys, fields, tags, partition_id):
            puts.append((partition_id, keys, fields))

        monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", keep)
        worker = object.__new__(RewardingWorker)
        worker.processor, worker.distillation_enabled, worker.mm_processor_kwargs = None, False, {}
        worker.reward_loop_worker_handles, worker.reward_function = [], reward
        worker.tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: f"text of {ids}")
        asyncio.run(asyncio.wait_for(worker._agent_loop_postprocess(outputs, validate=False, **FIELDS), 10))
        [result] = puts
        return result

    return put


@pytest.mark.parametrize("reward", [as_coroutine, as_function, lambda **_: 0.5])
def test_a_response_is_rewarded_by_the_configured_function(rows, reward):
    partition, keys, fields = rows(output_of([8, 9]), reward)
    assert (partition, keys) == ("train", ["u_3_0"])
    assert fields["rm_scores"][0].tolist() == [0.0, 0.5]
    parts = fields["extra_fields"][0]["reward_extra_info"]
    if "seen" not in parts:
        assert parts == {"acc": 0.5}
    else:
        assert parts["seen"]["solution_str"] == "text of [8, 9]"
        of_the_loop = {"min_global_steps": 4, "max_global_steps": 5, "num_turns": 2}
        assert parts["seen"]["extra_info"] == FIELDS["extra_info"] | of_the_loop
        assert "num_turns" not in FIELDS["extra_info"]  # the samples of a prompt share the row


def test_a_reward_of_the_loop_itself_stays(rows):
    _, keys, fields = rows([output_of([7]), output_of([8, 9], reward=0.25)], None)
    assert keys == ["u_3_0", "u_3_1"]
    assert [scores.tolist() for scores in fields["rm_scores"]] == [[0.25], [0.0, 0.25]]
