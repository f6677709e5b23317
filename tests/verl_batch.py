"""What veRL makes of the rows of an agent loop: the batch that training takes; no tests."""

from unittest import mock


async def put_by_verl(outputs, fields):
    """What veRL's agent loop worker puts into TransferQueue for a trajectory: keys, fields and tags of its rows.

    Args:
        outputs: The rows of the agent loop, each an `AgentLoopOutput`.
        fields: The sample's, with `global_steps`, `index` and `session_id`.
    """
    from verl.trainer.ppo.v1 import agent_loop_tq

    worker = object.__new__(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    worker.processor, worker.reward_loop_worker_handles, worker.distillation_enabled = None, None, False
    put = {}

    async def keep(keys, fields, tags, partition_id):
        put.update(keys=keys, fields=fields, tags=tags)

    with mock.patch.object(agent_loop_tq.tq, "async_kv_batch_put", keep):
        await worker._agent_loop_postprocess(outputs, validate=False, uid="u", **fields)
    return put
