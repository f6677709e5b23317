"""The check of a cluster's nodes: each rule finds its fault and no other, and a node says what is true of it."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cobalt.serving.nodes import Node, judging, replica_counts, reservation, sandboxes
from cobalt.serving.preflight import digest, findings, look
from cobalt.stage.environment import passed_on
from cobalt.training.configuration import node_environment

A, B = (Node(host, host, f"10.0.0.{number}", 64.0, 4.0) for number, host in enumerate("ab"))
SAME = {"ray": "2.60.0", "torch": "2.11.0", "/shared/cobalt": "c0de", "data_dir": "da7a", "model": "30de1"}
GOOD = (SAME, [])


def wrong(facts, node: Node = B) -> list[tuple[str, str]]:
    """The findings about a cluster of a good node and this one."""
    return findings({A: GOOD, node: facts}, GOOD)


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        *(((SAME | {name: "0ther"}, []), name) for name in SAME),
        (({"torch": "2.11.0"}, []), "/shared/cobalt, data_dir, model, ray"),
        ((SAME | {"data_dir": ""}, []), "data_dir"),
        ((SAME, ["it cannot judge programs"]), "it cannot judge programs"),
        ("No module named 'cobalt'", "No module named 'cobalt'"),
    ],
)
def test_a_fault_of_a_node_is_one_finding_about_that_node(facts, named):
    assert not wrong(GOOD)
    [(host, sentence)] = wrong(facts)
    assert host == "b" and named in sentence


def test_what_the_launcher_cannot_read_and_a_cluster_that_cannot_judge_are_findings():
    unreadable = ({"data_dir": ""}, [])
    assert [host for host, _ in findings({A: unreadable, B: unreadable}, unreadable)] == ["a", "b"]
    assert [host for host, _ in findings({replace(A, cpus=0.0): GOOD}, GOOD)] == ["cluster"], "nobody judges"


def test_a_digest_is_of_names_sizes_and_beginnings_and_empty_where_there_is_nothing(tmp_path):
    rows = tmp_path / "part" / "rows"
    rows.parent.mkdir()
    digests = [digest(tmp_path / "absent")]
    for content in (b"1" * 100_000, b"2" + b"1" * 99_999, b"2" + b"1" * 100_000):
        rows.write_bytes(content)
        digests.append(digest(tmp_path))
    rows.rename(tmp_path / "rows")
    digests += [digest(tmp_path), digest(tmp_path / "rows")]
    assert len({*digests, digest(tmp_path)}) == 6 and digests[0] == ""


def test_a_node_describes_itself(tmp_path, monkeypatch):
    absent = tmp_path / "absent"
    same, fails = look(A, {"data_dir": str(absent)}, shared=str(tmp_path))
    assert (same["--data_dir"], fails, (tmp_path / A.id).exists()) == ("", [], True) and same["pytest"]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=2**29))
    output, memory = look(A, {}, shared=str(absent))[1]
    assert str(absent) in output and "0.5 GiB" in memory


ENVIRONMENT = {
    "HF_HOME": "/hub", "HF_TOKEN": "s1", "WANDB_API_KEY": "s2", "WANDB_NOTES": "a ${b} c", "NCCL_DEBUG": "INFO",
    "HF_ENDPOINT": "https://user:s3@hub", "VLLM_HOST_IP": "10.0.0.1", "COBALT_JUDGE_TOKEN": "s4", "HOME": "/h",
}  # fmt: skip


def test_variables_of_the_shell_reach_the_nodes_and_secrets_do_not_reach_the_configuration(tmp_path):
    from omegaconf import OmegaConf

    assert passed_on(ENVIRONMENT).keys() == {"HF_HOME", "WANDB_NOTES", "NCCL_DEBUG"}
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


MARKED = [node("gpu", 64), node("cpu1", 0, judge=32), node("cpu2", 0, judge=32)]


def test_the_judge_is_sized_by_all_nodes_and_spread_evenly():
    assert replica_counts([node("a", 64), node("b", 64), node("c", 4)], None) == (18, 6)
    assert replica_counts([node("a", 20)], None) == (3, 3)
    assert replica_counts([node("a", 2)], None) == (1, 1)
    assert replica_counts([node("a", 64), node("b", 64)], 3) == (3, 2)
    assert replica_counts(MARKED, None) == (8, 4)


def test_marked_nodes_judge_alone_and_need_no_cpus_of_ray():
    assert judging(MARKED) == {"cpu1": 32, "cpu2": 32}
    cpus, resources = reservation(MARKED)
    assert cpus == 0 and resources.keys() == {"judge"}
    assert reservation([node("a", 20)]) == (0.1, {})


def test_the_replicas_of_a_node_share_its_cores():
    # Ray may count more CPUs than there are.
    of_nodes = [(node("a", 64), 64, 6, 10), (node("c", 4), 4, 6, 1), (node("a", 64), 2, 1, 2), (MARKED[1], 40, 4, 8)]
    for one, cores_here, per_node, expected in of_nodes:
        assert sandboxes(one, cores_here=cores_here, per_node=per_node) == expected
