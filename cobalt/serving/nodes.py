"""The nodes of the Ray cluster that this process has joined, and which of them judge programs.

A node judges if it was started with an amount of the resource `judge`, which is the number of its cores that judging
may use (`scripts/ray_cluster.sh join HEAD:PORT --num-cpus=0 --resources='{"judge": 64}'`). If no node has it, every
node with CPUs judges. This module starts nothing. Ray is imported inside the functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

JUDGE_RESOURCE = "judge"


@dataclass(frozen=True, slots=True)
class Node:
    """A living node.

    Attributes:
        id: Ray's name for it.
        host: Its host name.
        address: The IP address by which the other nodes reach it.
        cpus: The number of CPUs that Ray counts there, which is what its `ray start` says.
        gpus: The number of GPUs that Ray counts there.
        judge: The amount of the resource `judge`.
        object_store: Bytes of shared memory for Ray's objects.
    """

    id: str
    host: str
    address: str
    cpus: float
    gpus: float
    judge: float = 0.0
    object_store: int = 0


def living_nodes() -> list[Node]:
    """The nodes of the cluster that are alive, ordered by address."""
    import ray

    nodes = [_node(entry) for entry in ray.nodes() if entry["Alive"]]
    return sorted(nodes, key=lambda node: (node.address, node.id))


def this_node() -> Node:
    """The node that this process runs on."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    return next(node for node in living_nodes() if node.id == own)


def judging(nodes: Sequence[Node]) -> dict[str, float]:
    """The nodes that judge programs, by id, and the number of cores that each has for it."""
    marked = {node.id: node.judge for node in nodes if node.judge}
    return marked or {node.id: node.cpus for node in nodes if node.cpus}


def _node(entry: dict[str, Any]) -> Node:
    resources = entry["Resources"]
    return Node(
        id=entry["NodeID"],
        host=entry["NodeManagerHostname"],
        address=entry["NodeManagerAddress"],
        cpus=resources.get("CPU", 0.0),
        gpus=resources.get("GPU", 0.0),
        judge=resources.get(JUDGE_RESOURCE, 0.0),
        object_store=int(resources.get("object_store_memory", 0)),
    )
