"""The check of a cluster's nodes: each rule finds its fault and no other, and a node says what is true of it."""

import os
import re
import socket
from dataclasses import replace
from types import MappingProxyType

import pytest
from rich.console import Console

from cobalt.serving.nodes import Node, judging
from cobalt.serving.placement import place, sandboxes
from cobalt.serving.preflight.probe import Probe, digest, look, secret_digest
from cobalt.serving.preflight.report import Answer, Disk, NodeReport, Question
from cobalt.serving.preflight.rules import judge_reports
from cobalt.serving.preflight.table import node_table
from cobalt.stage.environment import passed_on, secrets_of_a_run
from cobalt.training.configuration import node_environment

GIB = 2**30
GOOD = Answer(
    python="3.11.9",
    environment="/shared/cobalt/.venv",
    code=("/shared/cobalt", "c0de"),
    packages=MappingProxyType({"ray": "2.60.0", "nvidia-cuda-runtime": "13.0.96"}),
    isolation="",
    gpus=("NVIDIA H100",) * 4,
    driver="580.65.06",
    compiler="",
    paths=MappingProxyType({"data": "da7a"}),
    hub_model=True,
    output="",
    disks=MappingProxyType({
        name: Disk(500 * GIB, 1000 * GIB) for name in ("output", "/tmp", "/dev/shm")
    }),
    interface="ib0",
    interfaces=("lo", "ib0"),
    values=MappingProxyType({"HF_HOME": "/shared/hub", "NCCL_SOCKET_IFNAME": "ib0"}),
    digests=MappingProxyType({"HF_TOKEN": "d1"}),
)  # fmt: skip


def report(host: str, answer: Answer | None = GOOD, **changes) -> NodeReport:
    fields = {"id": host, "address": "10.0.0.1", "cpus": 64.0, "gpus": 4.0, "object_store": GIB, "judges": True}
    return NodeReport(**fields | {"host": host, "answer": answer, "seen_by_launcher": True} | changes)


def test_nothing_is_wrong_with_nodes_like_the_launcher():
    verdict = judge_reports([report("a"), report("b")], GOOD)
    assert (verdict.errors, verdict.notes) == ([], [])


SMALL = Disk(GIB // 2, 1000 * GIB)
FAULTS = {
    "no answer": (report("b", None, failure="ModuleNotFoundError: No module named 'cobalt'"), "cobalt"),
    "isolation": (report("b", replace(GOOD, isolation="bubblewrap is not installed")), "bubblewrap"),
    "python": (report("b", replace(GOOD, python="3.11.2")), "3.11.2"),
    "environment": (report("b", replace(GOOD, environment="/home/x/.venv")), "/home/x/.venv"),
    "package": (report("b", replace(GOOD, packages=GOOD.packages | {"ray": "2.59.0"})), "ray 2.59.0"),
    "missing package": (report("b", replace(GOOD, packages={"nvidia-cuda-runtime": "13.0.96"})), "ray missing"),
    "code": (report("b", replace(GOOD, code=("/shared/cobalt", "0ther"))), "/shared/cobalt"),
    "unseen data": (report("b", replace(GOOD, paths={"data": ""})), "data"),
    "other data": (report("b", replace(GOOD, paths={"data": "0ther"})), "data"),
    "unshared output": (report("b", replace(GOOD, output="the launcher's file is not there")), "output"),
    "output of its own": (report("b", seen_by_launcher=False), "output"),
    "full output": (report("b", replace(GOOD, disks=GOOD.disks | {"output": SMALL})), "0.5 GiB"),
    "full /tmp": (report("b", replace(GOOD, disks=GOOD.disks | {"/tmp": SMALL})), "/tmp"),
    "small /dev/shm": (report("b", replace(GOOD, disks=GOOD.disks | {"/dev/shm": Disk(2**26, 2**26)})), "/dev/shm"),
    "object store": (report("b", object_store=2000 * GIB), "/dev/shm"),
    "fewer GPUs": (report("b", replace(GOOD, gpus=GOOD.gpus[:3])), "nvidia-smi lists 3"),
    "no driver": (report("b", replace(GOOD, gpus=(), driver="")), "nvidia-smi lists 0"),
    "no compiler": (report("b", replace(GOOD, compiler="there is no C compiler")), "C compiler"),
    "old driver": (report("b", replace(GOOD, driver="535.104.05")), "580"),
    "loopback": (report("b", address="127.0.0.1"), "127.0.0.1"),
    "firewall": (report("b", unreachable=("a",)), "firewall"),
    "interface": (report("b", replace(GOOD, interfaces=("lo", "eth0"))), "NCCL_SOCKET_IFNAME"),
    "lost variable": (report("b", replace(GOOD, values={"NCCL_SOCKET_IFNAME": "ib0"})), "HF_HOME"),
    "other secret": (report("b", replace(GOOD, digests={"HF_TOKEN": "d2"})), "HF_TOKEN"),
    "no secret": (report("b", replace(GOOD, digests={})), "HF_TOKEN"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_node_is_one_error_of_that_node(name):
    broken, about = FAULTS[name]
    errors = judge_reports([report("a"), broken], GOOD).errors
    assert [host for host, _ in errors] == ["b"], errors
    assert about in errors[0][1]


def test_a_node_that_does_nothing_but_judge_needs_no_secret():
    bare = replace(GOOD, digests={}, gpus=())
    assert not judge_reports([report("a"), report("b", bare, cpus=0.0, gpus=0.0)], GOOD).errors
    assert judge_reports([report("a"), report("b", bare, cpus=1.0, gpus=0.0)], GOOD).errors


def test_what_does_not_stop_a_run_is_a_note():
    for node, about in (
        (report("b", clock=-90.0, clock_error=0.1), "90 s after"),
        (report("b", replace(GOOD, hub_model=False)), "hub cache"),
    ):
        verdict = judge_reports([report("a"), node], GOOD)
        assert not verdict.errors
        assert [host for host, _ in verdict.notes] == ["b"] and about in verdict.notes[0][1]
    without_cuda = replace(GOOD, gpus=(), driver="", packages={"ray": "2.60.0"})
    verdict = judge_reports([report("a", without_cuda, gpus=1.0)], without_cuda)
    assert not verdict.errors and "logical" in verdict.notes[0][1]


def test_a_model_that_is_not_in_the_cache_stops_a_run_that_may_not_ask_the_hub():
    verdict = judge_reports([report("a", replace(GOOD, hub_model=False))], GOOD, offline=True)
    assert "HF_HUB_OFFLINE" in verdict.errors[0][1]


def test_a_clock_that_is_wrong_by_less_than_the_measurement_is_not_reported():
    assert not judge_reports([report("a", clock=6.0, clock_error=3.0)], GOOD).notes


@pytest.mark.parametrize(
    ("value", "holds"),
    [("ib", True), ("=ib", False), ("=ib0", True), ("^lo", True), ("eth,ib0:1", True), ("eth", False)],
)
def test_interfaces_are_named_as_nccl_names_them(value, holds):
    launcher = replace(GOOD, values={"NCCL_SOCKET_IFNAME": value})
    assert bool(judge_reports([report("a", launcher)], launcher).errors) is not holds


def test_a_cluster_without_a_node_that_judges_is_refused():
    assert judge_reports([report("a", replace(GOOD, isolation=None), judges=False)], GOOD).errors[0][0] == "cluster"


def test_the_table_has_a_row_for_each_node_and_counts_its_errors():
    reports = [report("a"), report("b", None, failure="x"), report("c", replace(GOOD, isolation="x"), judges=True)]
    console = Console(width=220, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(node_table(reports, judge_reports(reports, GOOD)))
    rows = [line for line in console.export_text().splitlines() if re.match(r"│ [abc] ", line)]
    assert len(rows) == 3
    assert "ok" in rows[0] and "1 wrong" in rows[1] and "1 wrong" in rows[2] and "isolation fails" in rows[2]


def test_a_digest_is_of_names_sizes_and_beginnings_and_empty_where_there_is_nothing(tmp_path):
    folder = tmp_path / "data"
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "rows").write_bytes(b"1" * 100_000)
    seen = {digest(folder)}
    (folder / "part" / "rows").write_bytes(b"2" + b"1" * 99_999)
    seen.add(digest(folder))
    (folder / "part" / "rows").rename(folder / "rows")
    seen.add(digest(folder))
    (folder / "rows").write_bytes(b"2" + b"1" * 100_000)
    seen.add(digest(folder))
    assert len(seen) == 4 and "" not in seen
    assert digest(tmp_path / "absent") == ""
    assert digest(folder) == digest(folder)


def test_a_node_reports_itself(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("t")
    monkeypatch.setenv("HF_HOME", "/hub")
    monkeypatch.setenv("HF_TOKEN", "secret")
    question = Question(
        {"data": str(tmp_path / "absent")}, token_folder=str(tmp_path), token="t", variables=("HF_HOME", "HF_X"),
        secrets=("HF_TOKEN",), salt="s",
    )  # fmt: skip
    found = look(question, "node", "127.0.0.1")
    assert (found.paths["data"], found.output, found.isolation) == ("", "", None)
    assert (tmp_path / "node").read_text() == "t"
    assert found.interface == "lo" and "pytest" in found.packages
    assert found.values == {"HF_HOME": "/hub"}
    assert found.digests == {"HF_TOKEN": secret_digest("secret", "s")} and "secret" not in repr(found)
    assert look(replace(question, token="other"), "node", "").output
    assert look(replace(question, token_folder=str(tmp_path / "absent")), "node", "").output


def test_a_node_with_gpus_and_no_compiler_says_so(tmp_path, monkeypatch):
    listing = tmp_path / "nvidia-smi"
    listing.write_text("#!/bin/sh\necho NVIDIA H100, 580.65.06\n")
    listing.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.delenv("CC", raising=False)
    seen = look(Question({}), "node", "127.0.0.1")
    assert seen.gpus == ("NVIDIA H100",) and "gcc" in seen.compiler
    monkeypatch.setenv("PATH", f"{tmp_path / 'absent'}")
    assert look(Question({}), "node", "127.0.0.1").compiler == "", "without GPUs nothing is compiled"


def test_a_port_that_nobody_listens_on_is_unreachable():
    probe = Probe("127.0.0.1")
    port = probe.listen()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        others = [("open", "127.0.0.1", port), ("closed", "127.0.0.1", closed.getsockname()[1])]
        assert probe.unreachable(others) == ["closed"]


ENVIRONMENT = {
    "HF_HOME": "/hub", "HF_TOKEN": "s1", "WANDB_API_KEY": "s2", "WANDB_NOTES": "a ${b} c", "NCCL_DEBUG": "INFO",
    "HF_ENDPOINT": "https://user:s3@hub", "VLLM_HOST_IP": "10.0.0.1", "COBALT_JUDGE_TOKEN": "s4", "HOME": "/h",
}  # fmt: skip


def test_variables_of_the_shell_reach_the_nodes_and_secrets_do_not_reach_the_configuration(tmp_path):
    from omegaconf import OmegaConf

    assert passed_on(ENVIRONMENT).keys() == {"HF_HOME", "WANDB_NOTES", "NCCL_DEBUG"}
    assert secrets_of_a_run(ENVIRONMENT).keys() == {"HF_TOKEN", "WANDB_API_KEY", "HF_ENDPOINT"}
    own = {"NCCL_DEBUG": "WARN", "TENSORBOARD_DIR": "/out"}
    config = OmegaConf.create({})
    OmegaConf.update(config, "env_vars", node_environment(own, ENVIRONMENT | {"RAY_ADDRESS": "h:1"}), force_add=True)
    OmegaConf.save(config, tmp_path / "config.yaml")
    assert not re.search(r"s\d", (tmp_path / "config.yaml").read_text())
    loaded = OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml"), resolve=True)
    assert loaded["env_vars"] == own | {"HF_HOME": "/hub", "WANDB_NOTES": "a ${b} c"}
    assert node_environment(own, ENVIRONMENT) == own, "on a Ray of its own the processes inherit the shell's"


def node(name: str, cpus: float, judge: float = 0.0) -> Node:
    return Node(name, name, name, cpus, 0.0, judge)


def test_the_judge_is_sized_by_all_nodes_and_spread_evenly():
    placement = place([node("a", 64), node("b", 64), node("c", 4)], cores_here=4, replicas=None)
    assert (placement.replicas, placement.per_node, placement.resources) == (18, 6, {})
    assert sandboxes(node("a", 64), cores_here=64, per_node=6) == 10
    assert sandboxes(node("c", 4), cores_here=4, per_node=6) == 1
    assert sandboxes(node("a", 64), cores_here=2, per_node=1) == 2, "Ray may count more CPUs than there are"


def test_marked_nodes_judge_alone_and_need_no_cpus_of_ray():
    nodes = [node("gpu", 64), node("cpu1", 0, judge=32), node("cpu2", 0, judge=32)]
    assert judging(nodes) == {"cpu1": 32, "cpu2": 32}
    placement = place(nodes, cores_here=64, replicas=None)
    assert (placement.replicas, placement.per_node) == (8, 4)
    assert placement.resources.keys() == {"judge"}
    assert sandboxes(nodes[1], cores_here=40, per_node=4) == 8


def test_on_one_machine_the_judge_is_sized_by_its_own_cores():
    for nodes in ([], [node("a", 16)]):
        placement = place(nodes, cores_here=20, replicas=None)
        assert (placement.replicas, placement.per_node, placement.resources) == (3, None, {})


def test_a_number_of_replicas_that_the_user_names_is_kept():
    assert place([node("a", 64), node("b", 64)], cores_here=64, replicas=3).replicas == 3
    assert place([node("a", 64), node("b", 64)], cores_here=64, replicas=3).per_node == 2
