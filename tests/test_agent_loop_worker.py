"""The processes of agent loops: rows as veRL makes them, batches that lose no row and hide no failure, and rewards.

VeRL's own code makes the rows that ours are compared with. Its queue is a list here; the tests of training runs
(`test_training_services.py`) use the real one.
"""

import asyncio
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="veRL is not installed (scripts/setup.sh --profile none)")
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
# What veRL's trainer and workers ask the queue for, of what a response has.
READ = {
    "uid", "data_source", "reward_model", "prompts", "responses", "response_mask", "loss_mask", "input_ids",
    "position_ids", "rm_scores", "num_turns", "extra_fields",
}  # fmt: skip


@pytest.fixture
def worker_module():
    from cobalt_verl.agent_loops import worker

    return worker


@pytest.fixture
def outbox_module():
    from cobalt_verl.agent_loops import outbox

    return outbox


def output_of(response, reward=None):
    from verl.experimental.agent_loop import AgentLoopOutput

    extra = {"min_global_steps": 4, "max_global_steps": 5}
    output = AgentLoopOutput(
        prompt_ids=[1, 2], response_ids=response, response_mask=[1] * len(response), num_turns=2, metrics={},
        response_logprobs=[-0.5] * len(response), extra_fields=extra,
    )  # fmt: skip
    if reward is not None:
        output.reward_score = reward
        output.extra_fields["reward_extra_info"] = {"score": reward}
    return output


class Queue:
    """Takes what is put, and fails if it is told to."""

    def __init__(self, monkeypatch, outbox_module):
        self.puts, self.failure = [], None
        monkeypatch.setattr(outbox_module.tq, "async_kv_batch_put", self.put)

    async def put(self, keys, partition_id, fields, tags):
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.puts.append((partition_id, keys, fields, tags))


@pytest.fixture
def queue(monkeypatch, outbox_module):
    return Queue(monkeypatch, outbox_module)


def outbox_of(outbox_module, samples):
    """An outbox with so many samples under way."""
    outbox = outbox_module.Outbox()
    for _ in range(samples):
        outbox.begin()
    return outbox


def row(outbox_module, key):
    return outbox_module.Row(key, {"prompts": torch.tensor([1])}, {"status": "success"})


@pytest.mark.parametrize("rows", [1, 2])
def test_a_samples_rows_are_those_of_verls_own_worker(worker_module, queue, monkeypatch, rows):
    from verl.trainer.ppo.v1 import agent_loop_tq

    def outputs():
        return [output_of([7] * (number + 2)) for number in range(rows - 1)] + [output_of([8, 9], reward=0.75)]

    theirs = object.__new__(agent_loop_tq.AgentLoopWorkerTQ.__ray_actor_class__)
    theirs.processor, theirs.reward_loop_worker_handles, theirs.distillation_enabled = None, [], False
    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", queue.put)
    asyncio.run(theirs._agent_loop_postprocess(outputs(), validate=False, **FIELDS))
    [(_, keys, fields, tags)] = queue.puts
    ours = worker_module.rows_of(outputs(), FIELDS)
    assert [row.key for row in ours] == keys
    assert [row.tag for row in ours] == tags
    for place, found in enumerate(ours):
        assert READ <= set(found.fields) < set(fields.keys())
        for name, value in found.fields.items():
            expected = fields[name][place]
            if isinstance(value, torch.Tensor):
                assert value.dtype == expected.dtype and value.tolist() == expected.tolist(), name
            else:
                assert value == getattr(expected, "data", expected), name


def test_a_reward_model_that_comes_later_finds_the_prompt(worker_module):
    [without] = worker_module.rows_of([output_of([8, 9])], FIELDS)
    [rewarded] = worker_module.rows_of([output_of([8, 9], reward=0.5)], FIELDS)
    assert set(without.fields) - set(rewarded.fields) == {"raw_prompt"}
    assert set(rewarded.fields) - set(without.fields) == {"rm_scores"}


def test_rows_that_end_while_others_are_generated_go_together(outbox_module, queue, monkeypatch):
    monkeypatch.setattr(outbox_module, "LONGEST_WAIT_SECONDS", 3600.0)

    async def samples():
        outbox = outbox_of(outbox_module, 4)
        waiting = [asyncio.create_task(outbox.put("train", [row(outbox_module, str(n))])) for n in range(2)]
        await asyncio.sleep(0)
        assert not queue.puts and not any(task.done() for task in waiting)
        await asyncio.gather(outbox.put("val", [row(outbox_module, "v")]), outbox.put("train", []), *waiting)

    asyncio.run(asyncio.wait_for(samples(), 10))
    assert [(partition, keys) for partition, keys, _, _ in queue.puts] == [("train", ["0", "1"]), ("val", ["v"])]


def test_a_row_does_not_wait_for_the_longest_sample(outbox_module, queue, monkeypatch):
    monkeypatch.setattr(outbox_module, "LONGEST_WAIT_SECONDS", 0.01)

    async def samples():
        outbox = outbox_of(outbox_module, 2)  # one never ends
        await outbox.put("train", [row(outbox_module, "0")])

    asyncio.run(asyncio.wait_for(samples(), 10))
    assert [keys for _, keys, _, _ in queue.puts] == [["0"]]


def test_a_failure_of_the_queue_reaches_every_sample_and_the_next_batch_goes(outbox_module, queue):
    async def samples():
        outbox = outbox_of(outbox_module, 2)
        queue.failure = RuntimeError("no storage")
        puts = [outbox.put("train", [row(outbox_module, str(number))]) for number in range(2)]
        failures = await asyncio.gather(*puts, return_exceptions=True)
        assert failures == [queue.failure] * 2
        queue.failure = None
        outbox.begin()
        await outbox.put("train", [row(outbox_module, "2")])

    asyncio.run(asyncio.wait_for(samples(), 10))
    assert [keys for _, keys, _, _ in queue.puts] == [["2"]]


def test_a_cancelled_sample_leaves_the_others_of_its_batch(outbox_module, queue):
    async def samples():
        outbox = outbox_of(outbox_module, 2)
        puts = [asyncio.create_task(outbox.put("train", [row(outbox_module, str(number))])) for number in range(2)]
        await asyncio.sleep(0)
        puts[0].cancel()
        await puts[1]

    asyncio.run(asyncio.wait_for(samples(), 10))
    assert [keys for _, keys, _, _ in queue.puts] == [["0", "1"]]


def test_rows_with_different_fields_are_refused(outbox_module, queue):
    async def samples():
        outbox = outbox_of(outbox_module, 2)
        other = outbox_module.Row("1", {"prompts": torch.tensor([1]), "more": 2}, {})
        puts = [outbox.put("train", [made]) for made in (row(outbox_module, "0"), other)]
        return await asyncio.gather(*puts, return_exceptions=True)

    assert all(isinstance(found, ValueError) for found in asyncio.run(asyncio.wait_for(samples(), 10)))
    assert not queue.puts


async def as_coroutine(**arguments):
    return {"score": 0.5, "seen": arguments}


def as_function(**arguments):
    return {"score": 0.5, "seen": arguments}


def as_number(**arguments):
    return 0.5


def worker_with(worker_module, outbox_module, reward, handles=()):
    worker = object.__new__(worker_module.RewardingWorker)
    worker.processor, worker.distillation_enabled, worker.reward_loop_worker_handles = None, False, list(handles)
    worker.tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: f"text of {ids}")
    worker._reward, worker._outbox, worker._loops = reward, outbox_module.Outbox(), {}
    return worker


class Loop:
    def __init__(self, *outputs):
        self._outputs = list(outputs)

    async def run(self, sampling_params, **fields):
        return self._outputs.pop(0)


@pytest.mark.parametrize("reward", [as_coroutine, as_function, as_number])
def test_a_response_is_rewarded_by_the_configured_function(worker_module, outbox_module, queue, reward):
    worker = worker_with(worker_module, outbox_module, reward)
    worker._loops = {"one": Loop(output_of([8, 9]))}
    run = worker._run_agent_loop({}, {"validate": False}, agent_name="one", trace=False, **FIELDS)
    asyncio.run(asyncio.wait_for(run, 10))
    [(partition, keys, fields, _)] = queue.puts
    assert (partition, keys) == ("train", ["u_3_0"])
    assert fields["rm_scores"][0].tolist() == [0.0, 0.5]
    parts = fields["extra_fields"][0]["reward_extra_info"]
    if reward is as_number:
        assert parts == {"acc": 0.5}
    else:
        seen = parts["seen"]
        assert seen["solution_str"] == "text of [8, 9]"
        of_the_loop = {"min_global_steps": 4, "max_global_steps": 5, "num_turns": 2}
        assert seen["extra_info"] == FIELDS["extra_info"] | of_the_loop
        assert "num_turns" not in FIELDS["extra_info"]  # the samples of a prompt share the row


def test_a_reward_of_the_loop_itself_stays(worker_module, outbox_module, queue):
    worker = worker_with(worker_module, outbox_module, None)
    worker._loops = {"one": Loop([output_of([7]), output_of([8, 9], reward=0.25)])}
    run = worker._run_agent_loop({}, {"validate": True}, agent_name="one", trace=False, **FIELDS)
    asyncio.run(asyncio.wait_for(run, 10))
    [(partition, keys, fields, _)] = queue.puts
    assert (partition, keys) == ("val", ["u_3_0", "u_3_1"])
    assert [scores.tolist() for scores in fields["rm_scores"]] == [[0.25], [0.0, 0.25]]


def test_a_sample_that_fails_does_not_hold_the_others_back(worker_module, outbox_module, queue, monkeypatch):
    monkeypatch.setattr(outbox_module, "LONGEST_WAIT_SECONDS", 3600.0)

    class Broken:
        async def run(self, sampling_params, **fields):
            raise RuntimeError("the judge is down")

    async def both():
        worker = worker_with(worker_module, outbox_module, as_coroutine)
        worker._loops = {"good": Loop(output_of([8, 9])), "bad": Broken()}
        runs = [worker._run_agent_loop({}, {"validate": False}, agent_name=name, **FIELDS) for name in ("good", "bad")]
        return await asyncio.gather(*runs, return_exceptions=True)

    good, bad = asyncio.run(asyncio.wait_for(both(), 10))
    assert good is None and isinstance(bad, RuntimeError)
    assert [keys for _, keys, _, _ in queue.puts] == [["u_3_0"]]


def test_processes_for_rewards_are_asked_if_there_are_some(worker_module, outbox_module, queue):
    class Process:
        async def answer(self, data):
            return {"reward_score": 0.125, "reward_extra_info": {"acc": 1.0}}

        compute_score = property(lambda self: SimpleNamespace(remote=self.answer))

    worker = worker_with(worker_module, outbox_module, None, handles=[Process()])
    worker.mm_processor_kwargs = {}
    worker._loops = {"one": Loop(output_of([8, 9]))}
    run = worker._run_agent_loop({}, {"validate": False}, agent_name="one", trace=False, **FIELDS)
    asyncio.run(asyncio.wait_for(run, 10))
    [(_, _, fields, _)] = queue.puts
    assert fields["rm_scores"][0].tolist() == [0.0, 0.125]


def test_one_loop_serves_all_samples_with_the_settings_of_its_entry(
    worker_module, outbox_module, queue, monkeypatch, tmp_path
):
    from verl.experimental.agent_loop import agent_loop

    from cobalt.training.configuration import TrainingSettings, compose

    config = compose(TrainingSettings(tmp_path, "m", tmp_path))
    worker = worker_with(worker_module, outbox_module, None)
    worker.config, worker.llm_client, worker.hf_model_type, worker.tools = config, None, None, []
    worker.dataset_cls = None
    made = []
    loop = Loop(output_of([8]), output_of([9]))
    monkeypatch.setattr(worker_module, "get_class", lambda name: lambda **given: made.append((name, given)) or loop)
    target = "cobalt_verl.agent_loops.single_turn.SingleTurnLoop"
    monkeypatch.setitem(agent_loop._agent_loop_registry, "n", {"name": "n", "_target_": target, "seeded": True})
    worker._reward = as_number

    async def two():
        for _ in range(2):
            await worker._run_agent_loop({}, {"validate": False}, agent_name="n", **FIELDS)

    asyncio.run(asyncio.wait_for(two(), 10))
    [(name, given)] = made
    assert name == target and given["seeded"] is True and given["trainer_config"].config is config
    assert [fields["responses"].tolist() for _, _, fields, _ in queue.puts] == [[[8]], [[9]]]


def test_the_only_engine_is_not_looked_for():
    from cobalt_verl.agent_loops.one_engine import OneEngineClient

    server = ("127.0.0.1:1", object())
    client = OneEngineClient(config=None, server=server)
    assert asyncio.run(client._acquire_server("r", prompt_ids=[1])) == server
    client._release_server("127.0.0.1:1", request_id="r")
