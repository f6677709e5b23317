"""A check of every node of a Ray cluster before a run: `python -m cobalt.preflight`.

`look` describes one node and runs on that node. `findings` compares the nodes with the launcher, the process that
starts the run. Nothing here starts a cluster or a service. Functions import Ray.
"""

import asyncio
import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cobalt
from cobalt.engine.model_check import model_path
from cobalt.judge.doctor import require_isolation
from cobalt.judge.settings import JudgeSettings
from cobalt.serving.nodes import Node, join, judging, living_nodes, this_node
from cobalt.stage.cli import run_script
from cobalt.stage.environment import passed_on
from cobalt.stage.errors import CobaltError, UserError, last_line

_CODE = ("cobalt/**/*.py", "cobalt/**/*.jinja", "verl/**/*.py", "verl/**/*.yaml")
_GIB = 2**30


@dataclass(frozen=True)
class Arguments:
    """Check every node of the Ray cluster at RAY_ADDRESS before a run.

    Prints a line for each node, and a sentence for each thing that would stop a run. Isolation is checked on the nodes
    that judge programs, under the COBALT_JUDGE_* variables.
    """

    data_dir: Path | None = None
    """The run's data, which every node must see."""
    model: str | None = None
    """The run's model, which every node must see if it is a folder."""
    output_dir: Path | None = None
    """The run's output, which every node must see and be able to write to."""
    nodes: int | None = None
    """Number of nodes that the cluster must have; waits for those that are missing."""
    seconds: float = 300.0
    """Seconds that nodes may take to join and, after that, to answer."""


Facts = tuple[Mapping[str, str], Sequence[str]]
"""A node as it sees itself: what must be as on the launcher, and sentences about what fails on the node."""


def look(node: Node, paths: Mapping[str, str], *, shared: str = "", judge: JudgeSettings | None = None) -> Facts:
    """Describe the machine of this process; takes some seconds if isolation is checked.

    Args:
        node: This machine, as Ray counts it.
        paths: Files and folders that every node must see at the same path, by flag ("data_dir", "model").
        shared: A new folder in the run's output, in which every node must be able to write; "": none.
        judge: The settings under which isolation is checked; None: this node does not judge.
    """
    root = Path(cobalt.__file__).resolve().parents[1]
    same = {dist.name.lower(): dist.version for dist in importlib.metadata.distributions() if dist.name}
    same |= {str(root): digest(root, *_CODE)} | {f"--{name}": digest(Path(path)) for name, path in paths.items()}
    fails = []
    if judge is not None:
        fails += _why("it cannot judge programs", lambda: asyncio.run(require_isolation(judge)))
    if shared:
        fails += _why("it cannot make a file in the launcher's output folder", Path(shared, node.id).touch)
    if (memory := shutil.disk_usage("/dev/shm").total) < _GIB:
        fails.append(f"it has {memory / _GIB:.1f} GiB of /dev/shm, and needs 1 GiB (docker --shm-size)")
    return same, fails


def digest(path: Path, *patterns: str) -> str:
    """A digest of a file, or of the files of a folder: names, sizes and beginnings; "" if it cannot be read."""
    total = hashlib.sha256()
    try:
        matches = {file for pattern in patterns or ("**/*",) for file in path.glob(pattern) if file.is_file()}
        for file in sorted(matches) if path.is_dir() else [path]:
            total.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as handle:
                total.update(handle.read(2**16))  # models are too large to be read whole
    except OSError:
        return ""
    return total.hexdigest()


def _why(what: str, check: Callable[[], object]) -> list[str]:
    """A sentence about a check that fails; [] if it does not."""
    try:
        check()
    except (CobaltError, OSError) as error:
        return [f"{what}: {error}"]
    return []


Answers = Mapping[Node, Facts | str]
"""The facts of each node, or why it did not answer."""


def findings(answers: Answers, launcher: Facts) -> list[tuple[str, str]]:
    """Findings that would stop a run: a host and a sentence each."""
    wrong = []
    for node, facts in answers.items():
        if isinstance(facts, str):
            wrong.append((node.host, f"it does not answer ({facts}): it needs this checkout"))
            continue
        same, fails = facts
        differing = sorted(name for name, value in launcher[0].items() if not value or same.get(name) != value)
        if differing:
            named = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
            wrong.append((node.host, f"it has not the launcher's packages (scripts/setup.sh), code or files: {named}"))
        wrong += [(node.host, sentence) for sentence in fails]
    if not judging(list(answers)):
        wrong.append(("cluster", "no node can judge programs: none has CPUs or the resource 'judge'"))
    return wrong


def await_nodes(count: int, seconds: float) -> list[Node]:
    """The nodes of the cluster that this process has joined, once it has so many; UserError after so many seconds."""
    deadline = time.monotonic() + seconds
    while len(nodes := living_nodes()) < count and time.monotonic() < deadline:
        time.sleep(1.0)
    if len(nodes) < count:
        hosts = ", ".join(node.host for node in nodes)
        raise UserError(f"the cluster has {len(nodes)} of {count} nodes after {seconds:g} s ({hosts})")
    return nodes


def survey(nodes: Sequence[Node], question: Mapping[str, Any], judge: JudgeSettings | None, seconds: float) -> Answers:
    """Ask the nodes, which have the variables that a run's processes get; all together may take so many seconds.

    `question` is what `look` takes besides the node and, for nodes that judge, the judge's settings (None: none does).
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0, runtime_env={"env_vars": passed_on(os.environ)})(look)
    judges = judging(nodes)
    asked = {
        node: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(
            node, **question, judge=judge if node.id in judges else None
        )
        for node in nodes
    }
    _, late = ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)

    def answer(reference: Any) -> Facts | str:
        if reference in late:
            ray.cancel(reference, force=True)
            return f"it took more than {seconds:g} s"
        try:
            facts: Facts = ray.get(reference)
        except RayError as error:
            return last_line(str(error)) or type(error).__name__
        return facts

    return {node: answer(reference) for node, reference in asked.items()}


def main(arguments: Arguments) -> int:
    """Check, print, and return the exit code."""
    inputs = {"data_dir": arguments.data_dir, "model": model_path(arguments.model) if arguments.model else None}
    paths = {name: str(path.absolute()) for name, path in inputs.items() if path is not None}
    judge = None if os.environ.get("COBALT_JUDGE_URL") else JudgeSettings.read()  # programs are judged at the URL
    join(log_to_driver=False, logging_level="ERROR")
    nodes = await_nodes(arguments.nodes or 1, arguments.seconds)
    output = arguments.output_dir and arguments.output_dir.absolute()
    # The run makes the folders that are missing, and so needs to write into the last that is there.
    parent = next(each for each in (output, *output.parents) if each.is_dir()) if output else None
    with tempfile.TemporaryDirectory(prefix=".preflight-", dir=parent, ignore_cleanup_errors=True) as folder:
        question: dict[str, Any] = {"paths": paths, "shared": folder if output else ""}
        answers = survey(nodes, question, judge, arguments.seconds)
        wrong = findings(answers, look(this_node(), **question))
    judges = judging(nodes) if judge else {}
    for node in nodes:
        judged = ", judges programs" if node.id in judges else ""
        sys.stdout.write(f"{node.host} ({node.address}): {node.cpus:g} CPUs, {node.gpus:g} GPUs{judged}\n")
    for host, sentence in wrong:
        sys.stderr.write(f"error: {host}: {sentence}\n")
    return 2 if wrong else 0


if __name__ == "__main__":
    from cobalt.serving import preflight  # under the name by which the nodes import it, not as __main__

    run_script(preflight.Arguments, preflight.main)
