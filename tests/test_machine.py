"""What a run needs of a machine or a cluster: as much as veRL asks Ray for, and no more shared memory than it uses."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cobalt.stage.errors import UserError
from cobalt.training import machine
from cobalt.training.configuration import TrainingSettings, compose

pytest.importorskip("verl", reason="veRL is not installed (scripts/setup.sh --profile none)")

GIB = 2**30


def config_of(*overrides, scale="paper", **choices):
    return compose(TrainingSettings(Path("data"), "model", Path("out"), scale=scale, overrides=overrides, **choices))


def counted_cpus(config, monkeypatch):
    """The CPUs that the Ray of a run counts."""
    from cobalt.training import launch

    counted = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(machine, "visible_gpus", lambda: [80 * GIB] * 16)
    monkeypatch.setattr(machine, "_ADDRESS", f"\0cobalt-test-{os.getpid()}")
    monkeypatch.setattr(
        launch, "private_ray", lambda **given: contextlib.nullcontext(counted.append(given["num_cpus"]))
    )
    with launch._ray(config):
        return counted[0]


class Recorded(Exception):
    pass


def cpus_that_verl_reserves(config, monkeypatch):
    """The CPUs of the placement groups that veRL and TransferQueue ask Ray for, by their own code."""
    import transfer_queue.utils.common as queue
    from verl.single_controller.ray import base

    bundles = []

    def record(asked=None, *_, **keywords):
        bundles.extend(keywords.get("bundles", asked))
        raise Recorded

    monkeypatch.setattr(base, "placement_group", record)
    monkeypatch.setattr(queue.ray.util, "placement_group", record)
    pool = {"global_pool": [config.trainer.n_gpus_per_node] * config.trainer.nnodes}
    manager = base.ResourcePoolManager(resource_pool_spec=pool, mapping={})
    monkeypatch.setattr(manager, "_check_resource_available", lambda: None)
    manager.create_resource_pool()
    with pytest.raises(Recorded):
        manager.resource_pool_dict["global_pool"].get_placement_groups()
    ranks = sum(bundle["CPU"] for bundle in bundles) * config.trainer.nnodes  # one group for each node
    bundles.clear()
    with pytest.raises(Recorded):
        queue.get_placement_group(config.transfer_queue.backend.SimpleStorage.num_data_storage_units)
    return ranks + sum(bundle["CPU"] for bundle in bundles)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "overrides"),
    [("paper", []), ("paper", ["trainer.n_gpus_per_node=8", "trainer.nnodes=2"]), ("pocket", [])],
)
def test_ray_counts_the_cpus_that_verl_reserves_and_one_for_the_controller(monkeypatch, scale, overrides):
    config = config_of(*overrides, scale=scale)
    reserved = cpus_that_verl_reserves(config, monkeypatch)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    # TransferQueue's controller, one that actors may start on
    assert counted_cpus(config, monkeypatch) == max(16, reserved + 2)


@pytest.mark.parametrize(
    ("scale", "overrides", "units"),
    [
        ("paper", [], 4),
        ("paper", ["trainer.n_gpus_per_node=8", "trainer.nnodes=2"], 16),
        ("paper", ["trainer.n_gpus_per_node=1"], 1),
        ("gpu-smoke", [], 1),
        ("pocket", [], 1),
        ("paper", ["transfer_queue.backend.SimpleStorage.num_data_storage_units=3"], 3),
    ],
)
def test_transfer_queue_has_a_storage_unit_for_each_gpu_if_none_are_set(scale, overrides, units):
    config = config_of(*overrides, scale=scale)
    assert config.transfer_queue.backend.SimpleStorage.num_data_storage_units == units


@pytest.mark.slow
def test_transfer_queue_keeps_its_storage_where_the_gpus_are(monkeypatch):
    from transfer_queue.utils import common

    resources = {"a": {"CPU": 8.0}, "b": {"CPU": 8.0, "GPU": 1.0}, "c": {"judge": 64.0}}
    nodes = [{"NodeID": name * 56, "Alive": True, "Resources": has} for name, has in resources.items()]
    monkeypatch.setattr(common.ray, "nodes", lambda: nodes)
    storage = config_of().transfer_queue.backend.SimpleStorage
    chosen = common.get_node_round_robin_scheduling_strategies(
        storage.num_data_storage_units, storage.required_node_resource
    )
    assert {strategy.node_id for strategy in chosen} == {"b" * 56}


def test_shared_memory_is_for_objects_and_on_a_cpu_for_weights():
    paper, pocket = config_of(data="partial_trajectories"), config_of(scale="pocket")
    assert machine.object_store_bytes(pocket) == GIB
    assert machine.object_store_bytes(paper) == 128 * 16 * 16384 * 40
    episodes = config_of(data="episodes", rollout="multi_turn")
    assert machine.object_store_bytes(episodes) == 3 * machine.object_store_bytes(paper)
    bucket = paper.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20
    assert machine.shared_memory_needed(paper) - machine.object_store_bytes(paper) < bucket / 2
    assert machine.shared_memory_needed(pocket) == GIB + 2 * 64 * 2**20


HOLD = """
import sys
from cobalt.training import machine
with machine.alone():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_fewer_gpus_than_the_run_asks_for_are_refused_before_ray_starts(monkeypatch):
    from cobalt.training import launch

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="asks for 3 GPUs"), launch._ray(config_of("trainer.n_gpus_per_node=3")):
        pass


def test_a_second_run_with_a_ray_of_its_own_is_refused_until_the_first_has_ended_however_it_ends(monkeypatch):
    from cobalt.training import launch

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(machine, "_ADDRESS", f"\0cobalt-test-{os.getpid()}")
    monkeypatch.setattr(launch, "private_ray", lambda **_: contextlib.nullcontext({"RAY_ADDRESS": "own"}))
    code = f"from cobalt.training import machine; machine._ADDRESS = {machine._ADDRESS!r}{HOLD}"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="another training run"), launch._ray(config_of(scale="pocket")):
            pass
        first.kill()
    for _ in range(2):
        with launch._ray(config_of(scale="pocket")) as addresses:
            assert addresses == {"RAY_ADDRESS": "own"}
