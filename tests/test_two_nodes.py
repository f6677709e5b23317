"""Two Ray nodes with networks of their own, as docs/cluster.md starts them: the check of nodes, and the loss of one."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from machines import two_machines
from support import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import faults

pytestmark = [pytest.mark.services, pytest.mark.sandbox, pytest.mark.timeout(600)]

CHECK = ("python", "-m", "cobalt.preflight")
VARIABLES = {
    "SLURM_JOB_ID": "1234",
    "SLURM_JOB_NODELIST": "node-[a-b]",
    "SLURM_CPUS_ON_NODE": "1",
    "SLURM_SUBMIT_DIR": str(ROOT),
    "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",
}
SCONTROL = """#!/bin/sh
[ "$*" = "show hostnames node-[a-b]" ] && printf 'node-a\\nnode-b\\n'
"""
SRUN = """#!/usr/bin/env bash
# Hands the command of a step to node-b, which waits for it.
while [[ $1 == --* ]]; do options+="$1 "; shift; done
echo "$options" > {place}/srun.options
printf '%q ' "$@" > {place}/step.new
mv {place}/step.new {place}/step
exec sleep infinity
"""
WAITING = "until [ -e {place}/step ]; do sleep 0.2; done; . {place}/step"
COMMAND = """
set -e
until [ -e {place}/go ]; do sleep 0.2; done
serve run --non-blocking remote_reward_server:app --name evaluator --route-prefix /evaluator
"$@"
"""
REPLICAS = """
import collections, json
from ray.util.state import list_actors
from cobalt import cluster
from cobalt.nodes import living_nodes
cluster.join()
hosts = {node.id: node.host for node in living_nodes()}
alive = list_actors(filters=[("state", "=", "ALIVE"), ("class_name", "=", "ServeReplica:evaluator:Evaluator")])
print(json.dumps(collections.Counter(hosts[actor.node_id] for actor in alive)))
"""


@pytest.fixture
def place():
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
    """Which of these the errors about a host name."""
    lines = [line for line in said.splitlines() if line.startswith(f"error: {host}: ")]
    return {part for part in about if any(part in line for line in lines)}


def test_a_job_of_two_nodes_checks_both_and_its_collection_survives_the_loss_of_one_that_judges(place):
    """Slurm itself is imitated by the two programs that scripts/slurm/ray.sh calls; the rest is real."""
    stubs = write_programs(place / "bin", scontrol=SCONTROL, srun=SRUN.format(place=place))
    data, output, other = place / "data", place / "run", place / "other"
    data.mkdir()
    other.mkdir()
    (data / "train.parquet").write_bytes(b"rows")
    load = faults.Load(place, place / "multi_turn.jsonl", pause=0.2)
    log = place / "job.log"
    checked = ["--data_dir", data, "--output_dir", output]
    job = ["env", f"PATH={stubs}:{os.environ['PATH']}", "bash", "scripts/slurm/several_nodes.sbatch"]
    job += ["--interface", "eth0", *checked, "--", "bash", "-c", COMMAND.format(place=place), "job", *load.command]
    with two_machines(place / "home") as (a, b):
        with (
            b.running("bash", "-c", WAITING.format(place=place), log=place / "b.log"),
            a.running(*job, log=log, **VARIABLES, HF_HOME=str(place / "hub")) as running,
        ):
            found = lambda: "2 nodes" in log.read_text() or running.poll() is not None  # noqa: E731
            faults.wait_until(found, 300, "the check of the job")
            assert running.poll() is None, log.read_text()[-4000:]
            assert "10.77.0.1 (eth0)" in log.read_text() and "10.77.0.2 (eth0)" in log.read_text()
            assert not output.exists(), "the check leaves nothing"

            broken = (
                "mount --bind /bin/false $(command -v bwrap)",
                f"mount --bind {other} {data}",
                f"mkdir -p {output} && mount -t tmpfs tmpfs {output}",
            )
            for line in broken:
                succeed(b.run("sh", "-c", line))
            red = a.run(*CHECK, *checked, HF_TOKEN="secret", GLOO_SOCKET_IFNAME="ib0")
            assert red.returncode == 2, red.stderr
            about = ("cannot judge programs", "its data has", "output is not shared", "HF_TOKEN", "GLOO_SOCKET_IFNAME")
            named = {machine.host: named_for(machine.host, red.stderr, about) for machine in (a, b)}
            assert named == {a.host: {"HF_TOKEN", "GLOO_SOCKET_IFNAME"}, b.host: set(about)}, red.stderr
            succeed(b.run("sh", "-c", f"umount {output} {data} $(command -v bwrap)"))

            (place / "go").touch()
            kept = load.wait_for(4, running)
            assert json.loads(succeed(a.run("python", "-c", REPLICAS)).splitlines()[-1]) == {a.host: 1, b.host: 1}
            b.lose()
            assert running.wait(300) == 0, log.read_text()[-4000:]
        load.check(kept)
        assert "--no-kill" in (place / "srun.options").read_text()
        assert "ray" not in succeed(a.run("ps", "-eo", "comm=")), "the job ends its Ray"
