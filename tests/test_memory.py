"""Resources that a run needs: memory and disk by the estimate, CPUs of Ray, shared memory; and what is refused."""

import contextlib
import logging
import os
import re
import subprocess
import sys
from math import inf
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support import ROOT, changed, composed

pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

from cobalt.stage.errors import UserError
from cobalt.training import launch, machine, offline
from cobalt.training.configuration import TrainingSettings, compose
from cobalt.training.machine import capacity
from cobalt.training.memory import Run, check_memory
from cobalt.training.policy import shape_of

pytestmark = pytest.mark.slow

GIB = 2**30
SIZES = {  # type, hidden, layers, heads, heads of keys, inner, vocabulary, tied embeddings
    "0.5B": ("qwen2", 896, 24, 14, 2, 4864, 151936, True),
    "1.5B": ("qwen2", 1536, 28, 12, 2, 8960, 151936, True),
    "8B": ("qwen3", 4096, 36, 32, 8, 12288, 151936, False),
    "4B": ("qwen3", 2560, 36, 32, 8, 9728, 151936, True),
    "0.6B": ("qwen3", 1024, 28, 16, 8, 3072, 151936, True),
    "small": ("qwen3", 384, 8, 6, 2, 1024, 8192, True),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with the configurations of Qwen2.5 and Qwen3, by their published sizes, and of a small model."""
    from transformers import AutoConfig

    folder = tmp_path_factory.mktemp("models")
    for name, (kind, hidden, layers, heads, keys, inner, vocabulary, tied) in SIZES.items():
        own = {"head_dim": 64 if name == "small" else 128, "max_position_embeddings": 40960} if kind == "qwen3" else {}
        AutoConfig.for_model(
            kind, architectures=[f"{kind.capitalize()}ForCausalLM"], hidden_size=hidden, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=keys, intermediate_size=inner, vocab_size=vocabulary,
            tie_word_embeddings=tied, **own,
        ).save_pretrained(folder / name)  # fmt: skip
    return folder


@pytest.fixture(autouse=True)
def no_gpu_of_this_machine(monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", list)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def online(model, *overrides, scale="paper", data="partial_trajectories"):
    return compose(TrainingSettings(model, str(model), model / "out", data=data, scale=scale, overrides=overrides))


def offline_config(model, *overrides, scale="paper-0.5b"):
    return offline.compose(offline.Arguments(model, str(model), model / "out", list(overrides), scale=scale))


def by_name(config, **choices):
    return {need.name: need for need in Run(config, 100).needs(**choices)}


PROGRAM = """
import re, sys
from pathlib import Path
from types import SimpleNamespace
import torch
from transformers import AutoConfig, AutoModelForCausalLM

def peak():  # of this program alone: getrusage's begins with that of the process which started it
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

torch.set_num_threads(1)
(torch.ones(64, 64) @ torch.ones(64, 64)).sum()
start = peak()
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1]), attn_implementation="sdpa")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(2):
    optimizer.zero_grad()
    tokens = torch.randint(0, 8192, (4, 256))
    logits = model(input_ids=tokens, use_cache=False).logits[0:] / torch.ones(4, 1, 1)
    torch.log_softmax(logits, dim=-1).gather(-1, tokens[..., None]).mean().backward()
    optimizer.step()
print(peak() - start)
"""


def test_a_real_model_takes_what_is_estimated_within_30_per_cent(models):
    path = str(models / "small")
    finished = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr[-2000:]
    config = offline_config(models / "small", "data.max_length=256", "data.max_token_len_per_gpu=1024", scale="pocket")
    parts = by_name(config)["host memory"].parts
    tensors = sum(size for name, size in parts.items() if name != "processes")
    assert tensors == pytest.approx(int(finished.stdout.split()[-1]), rel=0.3)


def test_parameters_and_files_follow_from_the_configuration(models):
    assert shape_of(str(models / "8B")).parameters == pytest.approx(8_190_735_360, rel=1e-4)  # published
    [checkpoints] = [size for name, size in by_name(online(models / "8B"))["disk"].parts.items() if "(5)" in name]
    assert checkpoints / 5e9 == pytest.approx(98.3, abs=0.2)


TABLE = re.findall(
    r"^\| (\d) x (\d+) GB[^|]* \| (\S+) \| ([^|]*) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$",
    (ROOT / "docs" / "training.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize("row", TABLE or [()], ids=lambda row: " ".join(row[:3]))
def test_a_documented_machine_fits_and_takes_what_the_table_says(models, row):
    gpus, card, model, overrides, *figures = row
    config = online(models / model, *overrides.strip("` ").split())
    assert config.trainer.n_gpus_per_node == int(gpus)
    needs = by_name(config, gpu=int(card) * GIB)
    assert all(need.total <= need.limit for need in needs.values())
    shown = [f"{needs[f'GPU, {phase}'].total / GIB:.1f}" for phase in ("sampling", "log-probs", "update")]
    assert [*shown, f"{needs['host memory'].total / GIB:.0f}"] == figures and len(TABLE) == 5


@pytest.mark.parametrize(("gib", "gpus", "level"), [(80, 4, 0), (50, 4, 1), (24, 1, 2)])
def test_a_run_is_printed_warned_of_or_refused(models, tmp_path, caplog, gib, gpus, level):
    caplog.set_level(logging.INFO)
    config = online(models / "8B", f"cobalt.gpu_memory_gib={gib}", f"trainer.n_gpus_per_node={gpus}")
    if level == 2:
        with pytest.raises(UserError, match="fsdp_config"):
            check_memory(config, tmp_path, 100)
    check_memory(config, tmp_path, 100, force=level == 2)
    assert "GPU, update" in caplog.text and "host memory" in caplog.text
    assert any(record.levelno == logging.WARNING for record in caplog.records) == bool(level)


@pytest.mark.parametrize(
    ("make", "full", "named"),
    [(online, "", "--keep"), (offline_config, "", "--keep"), (online, "/dev/shm", "--shm-size")],
)
def test_on_a_cpu_all_of_it_is_host_memory_and_a_full_disk_is_refused(models, tmp_path, monkeypatch, make, full, named):
    config = make(models / "small", scale="pocket")
    assert not any(name.startswith("GPU") for name in by_name(config))
    check_memory(config, tmp_path, 100)
    monkeypatch.setattr(
        machine.shutil,
        "disk_usage",
        lambda path: SimpleNamespace(free=2**20 if (full or str(tmp_path)) in str(path) else 2**40),
    )
    with pytest.raises(UserError, match=named):
        check_memory(config, tmp_path / "not" / "there", 100)


PLANS = {
    (model, int(size)): cell
    for model, *cells in re.findall(
        r"^\| ([\d.]+B) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", (ROOT / "docs" / "training.md").read_text(), re.MULTILINE
    )
    for size, cell in zip(("24", "40", "80"), cells, strict=True)
}


@pytest.mark.parametrize("make", [online, offline_config])
@pytest.mark.parametrize(("model", "size"), PLANS or [("none", 0)])
def test_on_one_gpu_the_plan_is_the_documented_one_and_fits(models, make, model, size):
    config = make(models / model, f"cobalt.gpu_memory_gib={size}", scale="gpu-1")
    needs = by_name(config, gpu=size * GIB)
    assert all(need.total <= need.limit for need in needs.values())
    if make is online:
        plan = config.cobalt.plan
        kind = ("adapters" if plan.rank else "all weights") + " in host memory" * plan.host
        assert PLANS[model, size] == f"{kind}, {plan.tokens:,} tokens"
        assert (config.actor_rollout_ref.actor.optim.lr, plan.rank) in ((1e-6, 0), (1e-5, 32))


def test_a_plan_gives_way_to_what_is_set_to_longer_samples_and_to_less_memory_of_the_host(models, monkeypatch):
    chosen = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    made = online(models / "8B", f"{chosen}=9000", "cobalt.gpu_memory_gib=80", scale="gpu-1")
    assert made.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 9000
    long = online(models / "0.5B", "data.max_prompt_length=60000", "cobalt.gpu_memory_gib=24", scale="gpu-1")
    assert long.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 62048
    monkeypatch.setattr(machine, "visible_gpus", lambda: [80 * GIB])
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=96 * GIB))
    here = online(models / "8B", scale="gpu-1")
    assert here.actor_rollout_ref.model.lora_rank == 32
    for size, samples in ((64, 2), (12, 1)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda size=size: SimpleNamespace(total=size * GIB))
        actor = online(models / "0.5B", scale="cpu").actor_rollout_ref.actor
        assert actor.ppo_micro_batch_size_per_gpu == samples


def test_the_message_names_overrides_with_which_the_run_fits(models, tmp_path):
    settings = ["cobalt.gpu_memory_gib=24", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=131072"]
    with pytest.raises(UserError) as refused:
        check_memory(online(models / "0.5B", *settings, scale="gpu-1"), tmp_path, 100)
    named = re.findall(r"actor_rollout_ref[\w.]+=\d+", str(refused.value))
    check_memory(online(models / "0.5B", *settings[:1], *named, scale="gpu-1"), tmp_path, 100)
    assert named


@pytest.mark.parametrize(
    ("every", "keep", "count"), [(10, "null", 4), (10, 1, 3), (10, 8, 4), (40, 1, 1), (-1, "null", 0), (7, "null", 5)]
)
def test_checkpoints_that_are_there_at_a_time(models, every, keep, count):
    small = composed("d", models / "small", "o", scale="paper", data="partial_trajectories")
    config = changed(small, f"trainer.save_freq={every}", f"cobalt.keep_checkpoints={keep}")
    [disk] = [need for need in Run(config, 31).needs() if need.name == "disk"]
    assert f"({count})" in next(iter(disk.parts))


def test_the_machines_own_gpus_count_and_the_smallest_decides(models, monkeypatch):
    config, output = online(models / "0.6B"), Path("/")
    assert capacity(config, output)[:2] == (80 * GIB, inf)
    monkeypatch.setattr(machine, "visible_gpus", lambda: [40 * GIB, 24 * GIB])
    assert capacity(config, output)[0] == 24 * GIB and capacity(config, output)[1] < inf
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert capacity(config, output)[0] == 80 * GIB


def test_a_model_that_is_not_here_is_not_estimated_and_the_smoke_profile_fits(models, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    check_memory(online(models / "nothing"), tmp_path, 100)
    assert str(models / "nothing") in caplog.text
    check_memory(online(models / "0.6B", scale="gpu-smoke"), tmp_path, 100)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


# --- CPUs, shared memory, one run at a time


def config_of(*overrides, scale="paper", **choices):
    return composed("data", "model", "out", *overrides, scale=scale, **choices)


class Asked(Exception):
    """Resources that Ray was asked for, where it is not started."""


@pytest.mark.parametrize(("scale", "gpus", "nodes"), [("paper", 4, 1), ("paper", 8, 2), ("pocket", 1, 1)])
def test_ray_counts_the_cpus_that_verl_reserves_and_one_for_the_controller(monkeypatch, scale, gpus, nodes):
    """The placement groups are those that veRL and TransferQueue ask Ray for, by their own code."""
    import transfer_queue.utils.common as queue
    from verl.single_controller.ray import base

    def ask(asked=None, *_, **keywords):
        raise Asked(sum(bundle["CPU"] for bundle in keywords.get("bundles", asked)))

    def cpus(function, *arguments):
        with pytest.raises(Asked) as raised:
            function(*arguments)
        return raised.value.args[0]

    config = config_of(f"trainer.n_gpus_per_node={gpus}", f"trainer.nnodes={nodes}", scale=scale)
    monkeypatch.setattr(base, "placement_group", ask)
    monkeypatch.setattr(queue.ray.util, "placement_group", ask)
    manager = base.ResourcePoolManager(resource_pool_spec={"global_pool": [gpus] * nodes}, mapping={})
    monkeypatch.setattr(manager, "_check_resource_available", lambda: None)
    manager.create_resource_pool()
    ranks = nodes * cpus(manager.resource_pool_dict["global_pool"].get_placement_groups)  # one group for each node
    units = cpus(queue.get_placement_group, config.transfer_queue.backend.SimpleStorage.num_data_storage_units)
    monkeypatch.setattr(machine, "visible_gpus", lambda: [80 * GIB] * 16)
    monkeypatch.setattr(machine, "RUN_SOCKET", f"\0cobalt-test-{os.getpid()}")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(launch, "private_ray", lambda num_cpus, **_: ask([{"CPU": num_cpus}]))
    # TransferQueue's controller, one that actors may start on
    assert cpus(launch.ray_of_run(config).__enter__) == max(16, ranks + units + 2)


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
    bucket = paper.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20
    assert machine.object_store_bytes(paper) == 128 * 16 * 16384 * 40
    assert machine.shared_memory_needed(paper) - machine.object_store_bytes(paper) < bucket / 2
    assert machine.shared_memory_needed(pocket) == machine.object_store_bytes(pocket) + 2 * 64 * 2**20
    episodes = config_of(data="episodes", rollout="multi_turn")
    assert machine.object_store_bytes(episodes) == 3 * machine.object_store_bytes(paper)


def test_fewer_gpus_than_the_run_asks_for_are_refused_before_ray_starts():
    with pytest.raises(UserError, match="3.*_per_node"), launch.ray_of_run(config_of("trainer.n_gpus_per_node=3")):
        pass


def test_a_second_run_with_a_ray_of_its_own_is_refused_until_the_first_has_ended_however_it_ends(monkeypatch):
    monkeypatch.setattr(machine, "RUN_SOCKET", f"\0cobalt-test-{os.getpid()}")
    monkeypatch.setattr(launch, "private_ray", lambda **_: contextlib.nullcontext({"RAY_ADDRESS": "own"}))
    code = f"""
import sys
from cobalt.training import machine
machine.RUN_SOCKET = {machine.RUN_SOCKET!r}
with machine.alone():
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="docs/cluster.md"), launch.ray_of_run(config_of(scale="pocket")):
            pass
        first.kill()
    for _ in range(2):
        with launch.ray_of_run(config_of(scale="pocket")) as addresses:
            assert addresses == {"RAY_ADDRESS": "own"}
