"""The Ray cluster that this process joins, and its nodes: which of them judge programs, and with how many replicas.

A node judges if it was started with an amount of the resource `judge`, which is the number of its cores that judging
may use (`scripts/ray_cluster.sh join HEAD:PORT --num-cpus=0 --resources='{"judge": 64}'`). If no node has it, every
node with CPUs judges. Ray is imported inside the functions.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cobalt.stage.errors import ServiceDown, UserError, last_line
from cobalt.training import cluster

CORES_PER_REPLICA = 8  # one event loop keeps about this many sandboxes busy with trivial tests
JUDGE_RESOURCE = "judge"


@dataclass(frozen=True, slots=True)
class Node:
    """A living node, with the CPUs and GPUs that Ray counts there, and its amount of the resource `judge`."""

    id: str
    host: str
    address: str
    cpus: float
    gpus: float
    judge: float = 0.0


def join(**options: Any) -> None:
    """Join the cluster that `RAY_ADDRESS` names, with options of `ray.init`, unless this process has joined one.

    Raises:
        UserError: it names none, or what is not an address, this user has not the cluster's token, or Ray was imported
            without the variables that it needs for this cluster.
        ServiceDown: nothing answers there, or it cannot be joined.
    """
    imported = sys.modules.get("ray")
    if imported is not None and imported.is_initialized():
        return
    address = cluster.named_cluster()
    if not address:
        start = cluster.START_COMMAND
        raise UserError(f"RAY_ADDRESS names no cluster: start one with `{start}`, which says how to set it")
    names = ("RAY_AUTH_MODE", cluster.LOOPBACK_VARIABLE)
    before = [os.environ.get(name) for name in names]
    cluster.prepare_to_join(address)
    needed = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name) not in before]
    if imported is not None and needed:
        raise UserError(f"the Ray cluster at {address} needs `export {' '.join(needed)}`, set before Ray starts")
    import ray
    from ray.exceptions import AuthenticationError

    try:
        ray.init(address=address, **options)
    except (ConnectionError, AuthenticationError, RuntimeError) as error:
        raise ServiceDown(
            f"the Ray cluster at {address} cannot be joined ({last_line(str(error))}): a Ray node must run on this"
            " machine (scripts/ray_cluster.sh start or join)"
        ) from None


def living_nodes() -> list[Node]:
    """The nodes of the cluster that are alive, ordered by address."""
    import ray

    nodes = [
        Node(
            id=entry["NodeID"],
            host=entry["NodeManagerHostname"],
            address=entry["NodeManagerAddress"],
            cpus=entry["Resources"].get("CPU", 0.0),
            gpus=entry["Resources"].get("GPU", 0.0),
            judge=entry["Resources"].get(JUDGE_RESOURCE, 0.0),
        )
        for entry in ray.nodes()
        if entry["Alive"]
    ]
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


def replica_counts(nodes: Sequence[Node], replicas: int | None) -> tuple[int, int]:
    """The number of replicas of the judge, and the most on one node: as many on each judging node.

    Args:
        nodes: The living nodes.
        replicas: The number that the user wants; None: one for each eight cores.
    """
    judges = judging(nodes)
    hosts = max(1, len(judges))
    per_node = math.ceil((replicas or max(1, sum(judges.values()) / CORES_PER_REPLICA)) / hosts)
    return replicas or per_node * hosts, per_node


def reservation(nodes: Sequence[Node]) -> tuple[float, dict[str, float]]:
    """Reservation of a replica of the judge: few CPUs, or, where nodes are marked, a little of the resource `judge`.

    The sandboxes share the machine with engines by the kernel's scheduler rather than by Ray's count.
    """
    return (0.0, {JUDGE_RESOURCE: 0.001}) if any(node.judge for node in nodes) else (0.1, {})


def sandboxes(node: Node, *, cores_here: int, per_node: int) -> int:
    """Number of sandboxes of a replica, at least 1, where so many replicas share a node.

    `cores_here` are those that a process may use there: Ray may have been told more, because training reserves more
    CPUs than it uses.
    """
    return max(1, int(min(node.judge or node.cpus, cores_here)) // per_node)
