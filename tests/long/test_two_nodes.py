"""Two Ray nodes with networks of their own, as docs/cluster.md starts them: the check of nodes, and the loss of one."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import faults
import pytest
from machines import Machine, two_machines
from support import ROOT, square_problem, write_lines
from test_training_services import SMALL

from cobalt.selection.verl_rows import SingleTurnRowsSettings, convert_single_turn
from cobalt.stage.records import read_records
from cobalt.training import run_folder

pytestmark = [
    pytest.mark.services,
    pytest.mark.sandbox,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set"),
]

CHECK = ("python", "-m", "cobalt.preflight")
VARIABLES = {
    "SLURM_JOB_ID": "1234",
    "SLURM_JOB_NODELIST": "node-[a-b]",
    "SLURM_CPUS_ON_NODE": "1",
    "SLURM_SUBMIT_DIR": str(ROOT),
}
OF_JOB = {"RAY_ADDRESS": "10.77.0.1:21234", "RAY_AUTH_MODE": "token"}  # of the job's number
SCONTROL = """#!/bin/sh
[ "$*" = "show hostnames node-[a-b]" ] && printf 'node-a\\nnode-b\\n'
"""
SRUN = """#!/usr/bin/env bash
# Hands the command of a step to node-b, which waits for it.
while [[ $1 == --* ]]; do options+="$1 "; shift; done
echo "$options" > {folder}/srun.options
printf '%q ' "$@" > {folder}/step.new
mv {folder}/step.new {folder}/step
exec sleep infinity
"""
WAITING = "until [ -e {folder}/step ]; do sleep 0.2; done; . {folder}/step"
COMMAND = """
set -e
touch {folder}/begun
until [ -e {folder}/go ]; do sleep 0.2; done
serve run remote_reward_server:app --name evaluator --route-prefix /evaluator --non-blocking
export COBALT_JUDGE_URL=http://127.0.0.1:8000/evaluator
"$@"
"""
REPLICAS = """
import collections, json, sys
from ray.util.state import list_actors
from cobalt.serving.nodes import join, living_nodes
join()
hosts = {node.id: node.host for node in living_nodes()}
alive = list_actors(filters=[("state", "=", "ALIVE"), ("class_name", "=", sys.argv[1])])
print(json.dumps(collections.Counter(hosts[actor.node_id] for actor in alive)))
"""


@pytest.fixture
def folder():
    """A folder that both machines see; not in /tmp, of which each has one of its own."""
    folder = ROOT / "runs" / f"test_two_nodes_{os.getpid()}"
    (folder / "home").mkdir(parents=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def succeed(finished: subprocess.CompletedProcess) -> str:
    assert finished.returncode == 0, finished.stderr[-4000:]
    return finished.stdout


def write_programs(folder: Path, **programs: str) -> Path:
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def named_for(host: str, said: str, about: Sequence[str]) -> set[str]:
    """The parts of `about` that the errors about a host name."""
    lines = [line for line in said.splitlines() if line.startswith(f"error: {host}: ")]
    return {part for part in about if any(part in line for line in lines)}


def test_a_job_of_two_nodes_checks_both_and_its_collection_survives_the_loss_of_one_that_judges(folder):
    """Slurm itself is imitated by the two programs that scripts/slurm/ray.sh calls; the rest is real."""
    stubs = write_programs(folder / "bin", scontrol=SCONTROL, srun=SRUN.format(folder=folder))
    data, output, other = folder / "data", folder / "run", folder / "other"
    data.mkdir()
    other.mkdir()
    (data / "train.parquet").write_bytes(b"rows")
    load = faults.Load(folder, folder / "multi_turn.jsonl", pause=0.1)
    log = folder / "job.log"
    checked = ["--data_dir", data, "--output_dir", output]
    job = ["env", f"PATH={stubs}:{os.environ['PATH']}", "bash", "scripts/slurm/several_nodes.sbatch"]
    job += ["--interface", "eth0", *checked, "--", "bash", "-c", COMMAND.format(folder=folder), "job", *load.command]
    with two_machines(folder / "home") as (a, b):
        with (
            b.running("bash", "-c", WAITING.format(folder=folder), log=folder / "b.log"),
            a.running(*job, log=log, **VARIABLES, HF_HOME=str(folder / "hub")) as running,
        ):
            begun = lambda: (folder / "begun").exists() or running.poll() is not None  # noqa: E731
            faults.wait_until(begun, 300, "the job's command")
            assert running.poll() is None, log.read_text()[-4000:]
            assert "10.77.0.1" in log.read_text() and "10.77.0.2" in log.read_text()
            assert not output.exists(), "the check leaves nothing"

            broken = (
                "mount --bind /bin/false $(command -v bwrap)",
                f"mount --bind {other} {data}",
                f"mkdir -p {output} && mount -t tmpfs tmpfs {output}",
            )
            for line in broken:
                succeed(b.run("sh", "-c", line))
            red = a.run(*CHECK, *checked, **OF_JOB)
            assert red.returncode == 2, red.stderr
            about = ("judge programs", "data_dir", "output")
            named = {machine.host: named_for(machine.host, red.stderr, about) for machine in (a, b)}
            assert named == {a.host: set(), b.host: set(about)}, red.stderr
            elsewhere = a.run(*CHECK, *checked, **OF_JOB, COBALT_JUDGE_URL="http://10.77.0.9:8000")  # no node judges
            assert named_for(b.host, elsewhere.stderr, about) == {"data_dir", "output"}, elsewhere.stderr
            succeed(b.run("sh", "-c", f"umount {output} {data} $(command -v bwrap)"))

            (folder / "go").touch()
            finished_before = load.wait_for(4, running)
            assert hosts_of(a, "evaluator:Evaluator", OF_JOB) == {a.host: 1, b.host: 1}
            b.lose()
            assert running.wait(300) == 0, log.read_text()[-4000:]
        load.check(finished_before)
        assert "--no-kill" in (folder / "srun.options").read_text()
        assert "ray" not in succeed(a.run("ps", "-eo", "comm=")), "the job ends its Ray"


@contextlib.contextmanager
def two_nodes(folder: Path, first: Sequence[str], second: Sequence[str]) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with a Ray that was started by hand, with these flags of `ray start`."""
    with two_machines(folder / "home") as (a, b):
        succeed(a.run("bash", "scripts/ray_cluster.sh", "start", "--interface", "eth0", *first))
        succeed(b.run("bash", "scripts/ray_cluster.sh", "join", "10.77.0.1:6379", "--interface", "eth0", *second))
        yield a, b
        succeed(a.run("bash", "scripts/ray_cluster.sh", "stop"))


CLUSTER = {"RAY_ADDRESS": "10.77.0.1:6379", "RAY_AUTH_MODE": "token"}
APPS = {"COBALT_HTTP": "http://127.0.0.1:8000"}


@pytest.fixture(scope="module")
def world():
    """A pocket world that both machines see."""
    from cobalt.pocket import build_pocket_world
    from cobalt.pocket.training import Recipe

    folder = ROOT / "runs" / f"test_two_nodes_world_{os.getpid()}"
    sizes = {"train": 12, "dev": 6, "test": 6}
    yield build_pocket_world(folder, sizes=sizes, recipe=Recipe(demonstrations=320), open_share=0)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_collection_survives_the_loss_of_a_node_with_an_engine(folder, world):
    problems = write_lines(folder / "problems.jsonl", [square_problem(number) for number in range(24)])
    log = folder / "rollout.log"
    command = ["python", "run_multi_turn_vllm.py", "-i", problems, "-n", "2", "--turns", "2", "--max_tokens", "48"]
    command += ["--concurrency", "2", "--prompts", "pocket", "-o"]
    reference, output = folder / "reference.jsonl", folder / "output.jsonl"
    with two_nodes(folder, ["--num-cpus=1"], ["--num-cpus=1"]) as (a, b):
        serve = ("serve", "run", "--non-blocking")
        succeed(a.run(*serve, "remote_reward_server:app", *named("evaluator"), **CLUSTER))
        engine = ("vllm_engine_actor:app", f"model={world.model}", "num_replicas=2", "max_model_len=1024")
        succeed(a.run(*serve, *engine, *named("vllm_actor"), timeout=600, **CLUSTER))
        assert hosts_of(a, "vllm_actor:VllmEngineActor", CLUSTER) == {a.host: 1, b.host: 1}
        succeed(a.run(*command, reference, timeout=600, **APPS))
        with a.running(*command, output, log=log, **APPS) as running:
            wait = lambda: count(output) >= 4 or running.poll() is not None  # noqa: E731
            faults.wait_until(wait, 300, "the first records")
            lines = output.read_bytes().splitlines()
            assert running.poll() is None and len(lines) < 24, log.read_text()[-4000:]
            b.lose()
            assert running.wait(600) == 0, log.read_text()[-4000:]
        records = read_records(output)
        assert [record["id"] for record in records] == list(range(24))
        assert set(lines) <= set(output.read_bytes().splitlines())
        assert not any(any(errors) for record in records for errors in record["errors"])
        pairs = zip(records, read_records(reference), strict=True)
        assert all(one["raw_responses"] == other["raw_responses"] for one, other in pairs)


def test_a_training_run_survives_the_loss_of_a_node_that_judges(folder, world):
    output, log = folder / "run", folder / "launcher.log"
    command = training(folder, world, output)
    variables = {**CLUSTER, "HF_HUB_OFFLINE": "1", "WANDB_API_KEY": "secret", "HF_TOKEN": "secret"}
    metrics = output / "metrics.jsonl"
    first = ["--num-cpus=16", "--num-gpus=1", '--resources={"judge": 1}']
    with two_nodes(folder, first, ["--num-cpus=0", '--resources={"judge": 1}']) as (a, b):
        with a.running(*command, log=log, **variables) as running:
            wait = lambda: count(metrics) >= 2 or running.poll() is not None  # noqa: E731
            faults.wait_until(wait, 600, "the first step")
            assert running.poll() is None and count(metrics) < 4, said_by(log, output)
            assert hosts_of(a, "evaluator:Evaluator", CLUSTER) == {a.host: 1, b.host: 1}
            b.lose()
            assert running.wait(600) == 0, said_by(log, output)
        assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == [0, 1, 2, 3]
        assert (output / "model" / "model.safetensors").exists()
        config = (output / "config.yaml").read_text()
        assert "HF_HUB_OFFLINE" in config
        written = [path for path in output.rglob("*") if path.suffix in (".yaml", ".json", ".jsonl", ".log")]
        assert not [path for path in written if "secret" in path.read_text()]


def test_after_the_loss_of_the_node_that_trains_the_same_command_goes_on_from_the_last_checkpoint(folder, world):
    output, log = folder / "run", folder / "launcher.log"
    command = training(folder, world, output)
    join = ("bash", "scripts/ray_cluster.sh", "join", "10.77.0.1:6379", "--interface", "eth0")
    trains = ("--num-cpus=8", "--num-gpus=1")
    metrics = output / "metrics.jsonl"
    with two_nodes(folder, ["--num-cpus=8"], trains) as (a, b):
        with a.running(*command, log=log, **CLUSTER) as running:
            # The line of step 2 comes after its checkpoint.
            wait = lambda: count(metrics) >= 3 or running.poll() is not None  # noqa: E731
            faults.wait_until(wait, 600, "two steps")
            assert running.poll() is None and count(metrics) < 4, said_by(log, output)
            b.lose()
            assert running.wait(600) == 1, said_by(log, output)
        last_step = run_folder.last(output)
        assert last_step >= 2 and not (output / "model").exists()
        before = [line for line in metrics.read_text().splitlines() if json.loads(line)["step"] <= last_step]

        b.begin()
        succeed(b.run(*join, *trains))
        log = folder / "again.log"
        with a.running(*command, log=log, **CLUSTER) as running:
            assert running.wait(600) == 0, said_by(log, output)
        assert f"from step {last_step}" in log.read_text()
        lines = metrics.read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]
        assert lines[: len(before)] == before
        assert (output / "model" / "model.safetensors").exists()


def training(folder: Path, world, output: Path) -> list[object]:
    """The command of a training run of three steps; its rows are made here."""
    data = folder / "rows"
    train, validation = (world.model.parent / "data" / f"{split}.jsonl" for split in ("train", "dev"))
    convert_single_turn(
        SingleTurnRowsSettings(
            train_file=train,
            validation_file=validation,
            local_dir=data,
            model_name=str(world.model),
            max_prompt_length=256,
            data_source="pocket",
            prompts="pocket",
        )
    )
    command = ["bash", "scripts/train_grpo_single_turn.sh", "--data_dir", data, "--model", world.model]
    return [*command, "--output_dir", output, *SMALL, "trainer.total_training_steps=3"]


def named(app: str) -> list[str]:
    return ["--name", app, "--route-prefix", f"/{app}"]


def hosts_of(machine: Machine, deployment: str, variables: Mapping[str, str]) -> dict[str, int]:
    """Number of a deployment's replicas on each machine, by its host name."""
    said = succeed(machine.run("python", "-c", REPLICAS, f"ServeReplica:{deployment}", **variables))
    return json.loads(said.splitlines()[-1])


def count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def said_by(launcher: Path, output: Path) -> str:
    log = output / "train.log"
    return launcher.read_text()[-3000:] + (log.read_text()[-5000:] if log.exists() else "")
