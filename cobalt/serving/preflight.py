"""A check of every node of a Ray cluster before a run: `python -m cobalt.preflight`.

`look` describes one node and runs on that node. `RULES` compare a node with the launcher, the process that starts the
run. Nothing here starts a cluster or a service. Functions import Ray.
"""

import asyncio
import hashlib
import hmac
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import cobalt
from cobalt.engine.model_check import model_path
from cobalt.judge.doctor import require_isolation
from cobalt.judge.settings import JudgeSettings
from cobalt.serving.nodes import Node, join, judging, living_nodes, this_node
from cobalt.stage.cli import run_script
from cobalt.stage.environment import passed_on, secrets_of_a_run
from cobalt.stage.errors import CobaltError, UserError, last_line
from cobalt.training.cluster import START_COMMAND, named_cluster, prepare_to_join

_CODE = ("cobalt/**/*.py", "cobalt/**/*.jinja", "verl/**/*.py", "verl/**/*.yaml")
_GIB = 2**30


@dataclass(frozen=True)
class Arguments:
    """Check every node of the Ray cluster at RAY_ADDRESS before a run.

    Prints one row for each node, and a sentence for each thing that would stop a run. Isolation is checked on the nodes
    that judge programs, under the COBALT_JUDGE_* variables.
    """

    data_dir: Path | None = None
    """The run's data, which every node must see."""
    model: str | None = None
    """The run's model, which every node must see if it is a folder."""
    output_dir: Path | None = None
    """The run's output, which every node must see and be able to write to."""
    nodes: int | None = None
    """How many nodes the cluster must have; waits for those that are missing."""
    seconds: float = 300.0
    """How long nodes may take to join and, after that, to answer."""


Facts = Mapping[str, Any]
"""A node as it sees itself: values to compare with the launcher's, or why something fails ("" if it works)."""


def look(
    node: Node, paths: Mapping[str, str], *, shared: str = "", salt: bytes = b"", judge: JudgeSettings | None = None
) -> Facts:
    """Describe the machine of this process; takes some seconds if isolation is checked.

    Args:
        node: This machine, as Ray counts it.
        paths: What every node must see at the same path, by flag ("data_dir", "model").
        shared: A new folder in the run's output, in which every node must be able to write; "": none.
        salt: Random bytes for the digests of secrets.
        judge: The settings under which isolation is checked; None: this node does not judge.
    """
    root = Path(cobalt.__file__).resolve().parents[1]
    packages = {dist.name.lower(): dist.version for dist in importlib.metadata.distributions() if dist.name}
    gpus = _gpus()
    counted = node.gpus if "nvidia-cuda-runtime" in packages else 0  # without CUDA they are logical ones
    secrets = secrets_of_a_run(os.environ)
    memory = shutil.disk_usage("/dev/shm").total
    return {
        "environment": str(Path(sys.prefix).resolve()),
        "packages": packages,
        "code": f"{root} ({digest(root, *_CODE)[:12]})",
        "isolation": _why(lambda: asyncio.run(require_isolation(judge))) if judge else "",
        "GPUs": gpus,
        "missing GPUs": "" if len(gpus) >= counted else f"Ray counts {counted:g}, and nvidia-smi lists {len(gpus)}",
        "memory": "" if memory >= _GIB else f"{memory / _GIB:.1f} GiB",
        "paths": {name: digest(Path(path)) for name, path in paths.items()},
        "output": _why(Path(shared, node.id).touch) if shared else "",
        "secrets": {name: hmac.digest(salt, text.encode(), "sha256").hex() for name, text in secrets.items()},
    }


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


def _why(check: Callable[[], object]) -> str:
    """Why a check fails; "" if it does not."""
    try:
        check()
    except (CobaltError, OSError) as error:
        return str(error)
    return ""


def _gpus() -> list[str]:
    """Name and memory of each GPU, as the driver lists them."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def _failure(value: str, _: str) -> str:
    return value


def _other(value: str, launcher: str) -> str:
    return "" if value == launcher else f"{value}, the launcher's {launcher}"


def _missing(values: Mapping[str, str], launcher: Mapping[str, str]) -> str:
    """The names whose value is not the launcher's, or is empty."""
    names = sorted(name for name, value in launcher.items() if not value or values.get(name) != value)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


RULES: tuple[tuple[str, Callable[[Any, Any], str], str], ...] = (
    ("environment", _other, "its Ray runs in the environment {}: activate it before `scripts/ray_cluster.sh join`"),
    ("packages", _missing, "its packages have other versions than the launcher's ({}): run scripts/setup.sh there"),
    ("code", _other, "its code is {}"),
    ("isolation", _failure, "it cannot judge programs: {}"),
    ("missing GPUs", _failure, "it lacks GPUs: {}"),
    ("memory", _failure, "it has {} of shared memory in /dev/shm, and needs 1 GiB (docker --shm-size)"),
    ("paths", _missing, "it does not see the launcher's files ({}), which all nodes must see at the same path"),
    ("output", _failure, "it cannot make a file in the launcher's output folder: {}"),
    ("secrets", _missing, "its Ray lacks the launcher's {}: set them before `scripts/ray_cluster.sh start` and `join`"),
)
"""A fact, what is wrong with its value beside the launcher's ("": nothing), and the sentence that says so."""

Answers = Mapping[Node, Facts | str]
"""The facts of each node, or why it did not answer."""


def findings(answers: Answers, launcher: Facts) -> list[tuple[str, str]]:
    """What would stop a run: a host and a sentence each."""
    wrong = []
    for node, facts in answers.items():
        if isinstance(facts, str):
            wrong.append((node.host, f"it does not answer ({facts}): it needs this checkout, {launcher['code']}"))
            continue
        needs_secrets = bool(node.cpus or node.gpus)  # a node that only judges needs none
        for name, difference, sentence in RULES:
            text = difference(facts[name], launcher[name])
            if text and (needs_secrets or name != "secrets"):
                wrong.append((node.host, sentence.format(text)))
    if not judging(list(answers)):
        wrong.append(("cluster", "no node can judge programs: none has CPUs or the resource 'judge'"))
    return wrong


def node_table(answers: Answers, wrong: Sequence[tuple[str, str]]) -> Table:
    """One row for each node; what is wrong with a node is said below the table."""
    table = Table("node", "address", "CPUs", "judges", "GPUs", "finding", title=f"{len(answers)} nodes")
    judges = judging(list(answers))
    for node, facts in answers.items():
        gpus = "-" if isinstance(facts, str) else ", ".join(facts["GPUs"]) or "-"
        count = sum(host == node.host for host, _ in wrong)
        finding = f"[red]{count} wrong[/red]" if count else "[green]ok[/green]"
        table.add_row(node.host, node.address, f"{node.cpus:g}", "yes" if node.id in judges else "no", gpus, finding)
    return table


def await_nodes(count: int, seconds: float) -> list[Node]:
    """The nodes of the cluster that this process has joined, once it has so many; UserError after so many seconds."""
    deadline = time.monotonic() + seconds
    while len(nodes := living_nodes()) < count and time.monotonic() < deadline:
        time.sleep(1.0)
    if len(nodes) < count:
        hosts = ", ".join(node.host for node in nodes)
        raise UserError(f"the cluster has {len(nodes)} of {count} nodes after {seconds:g} s ({hosts})")
    return nodes


def survey(nodes: Sequence[Node], question: Mapping[str, Any], judge: JudgeSettings, seconds: float) -> Answers:
    """Ask the nodes, which have the variables that a run's processes get; all together may take so many seconds.

    `question` is what `look` takes beside the node and, for nodes that judge, the judge's settings.
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
    if not arguments.seconds > 0:
        raise UserError(f"--seconds is {arguments.seconds:g}: it must be above 0")
    model = model_path(arguments.model) if arguments.model else None
    if model is None and arguments.model and arguments.model.count("/") != 1:
        model = Path(arguments.model)  # which is not there, and no name of the Hub either
    inputs = {"data_dir": arguments.data_dir, "model": model}
    paths = {name: str(path.absolute()) for name, path in inputs.items() if path is not None}
    for name, path in paths.items():
        if not Path(path).exists():
            raise UserError(f"--{name} {path} is not on this machine")
    judge = JudgeSettings.from_environment()
    if not named_cluster():
        raise UserError(f"RAY_ADDRESS names no cluster: start one with `{START_COMMAND}`, which says how to set it")
    prepare_to_join(named_cluster())
    join(named_cluster(), log_to_driver=False, logging_level="ERROR")
    nodes = await_nodes(arguments.nodes or 1, arguments.seconds)
    output = arguments.output_dir and arguments.output_dir.absolute()
    # The run makes the folders that are missing, and so needs to write into the last that is there.
    parent = next(each for each in (output, *output.parents) if each.is_dir()) if output else None
    with tempfile.TemporaryDirectory(prefix=".preflight-", dir=parent, ignore_cleanup_errors=True) as folder:
        question: dict[str, Any] = {"paths": paths, "shared": folder if output else "", "salt": os.urandom(16)}
        answers = survey(nodes, question, judge, arguments.seconds)
        wrong = findings(answers, look(this_node(), **question))
    Console(width=None if sys.stdout.isatty() else 200).print(node_table(answers, wrong))
    for host, sentence in wrong:
        sys.stderr.write(f"error: {host}: {sentence}\n")
    return 2 if wrong else 0


if __name__ == "__main__":
    from cobalt.serving import preflight  # under the name by which the nodes import it, not as __main__

    run_script(preflight.Arguments, preflight.main)
