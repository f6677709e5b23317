"""How many replicas the judge has, on which nodes they run, and how many sandboxes each has.

Nothing here starts a replica or asks Ray: the functions take the nodes that are there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cobalt.serving.nodes import JUDGE_RESOURCE, Node, judging

CORES_PER_REPLICA = 8  # one event loop keeps about this many sandboxes busy with trivial tests


@dataclass(frozen=True, slots=True)
class Placement:
    """Where replicas run.

    Attributes:
        replicas: Number of replicas.
        per_node: The most replicas on one node; None: no limit, because there is one node.
        resources: What a replica reserves so that it runs on a judging node only; empty if all nodes judge.
    """

    replicas: int
    per_node: int | None
    resources: dict[str, float]


def place(nodes: Sequence[Node], *, cores_here: int, replicas: int | None) -> Placement:
    """Spread replicas evenly over the judging nodes.

    The same number on each node, so that the loss of one leaves the others as they were. Nodes may have different
    numbers of cores, and a replica's sandboxes follow from those of its own node (`sandboxes`).

    Args:
        nodes: The living nodes; at most one of them: the machine of this process.
        cores_here: Number of cores of that machine.
        replicas: The number that the user wants; None: one for each eight cores.
    """
    if len(nodes) < 2:
        return Placement(replicas or math.ceil(cores_here / CORES_PER_REPLICA), None, {})
    judges = judging(nodes)
    wanted = replicas or max(1, math.ceil(sum(judges.values()) / CORES_PER_REPLICA))
    per_node = math.ceil(wanted / max(1, len(judges)))
    marked = any(node.judge for node in nodes)
    return Placement(replicas or per_node * max(1, len(judges)), per_node, {JUDGE_RESOURCE: 0.001} if marked else {})


def sandboxes(node: Node, *, cores_here: int, per_node: int) -> int:
    """Number of sandboxes of a replica, at least 1.

    Args:
        node: The node that the replica runs on.
        cores_here: Number of cores that a process may use there. Ray may have been told a larger number, because
            training reserves more CPUs than it uses.
        per_node: The most replicas on one node.
    """
    return max(1, int(min(node.judge or node.cpus, cores_here)) // per_node)
