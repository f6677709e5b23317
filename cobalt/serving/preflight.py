"""A check of every node of a Ray cluster before a run: `python -m cobalt.preflight`.

`look` describes one node and runs on that node. `RULES` say what would stop a run. A node is compared with the
launcher, the process that starts the run. Nothing here starts a cluster or a service. Functions import Ray.
"""

import asyncio
import hashlib
import hmac
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq, le, not_
from pathlib import Path
from typing import Any

import tenacity
from rich.console import Console
from rich.table import Table

import cobalt
from cobalt.engine.model_check import model_path
from cobalt.judge.doctor import require_isolation
from cobalt.judge.settings import JudgeSettings
from cobalt.serving.nodes import Node, judging, living_nodes, this_node
from cobalt.stage.cli import run_script
from cobalt.stage.environment import passed_on, secrets_of_a_run
from cobalt.stage.errors import CobaltError, UserError, last_line
from cobalt.training import gpu_compiler
from cobalt.training.cluster import START_COMMAND, join, named_cluster, prepare_to_join

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
    """The run's model: a folder, which every node must see, or a hub name, which must be cached if the hub is off."""
    output_dir: Path | None = None
    """The run's output, which every node must see and be able to write to."""
    nodes: int | None = None
    """How many nodes the cluster must have; waits for those that are missing."""
    seconds: float = 300.0
    """How long nodes may take to join and, after that, to answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a node is asked to look at."""

    paths: Mapping[str, str]  # what every node must see at the same path, by flag ("data_dir", "model")
    hub_model: str = ""  # the model's name on the hub
    shared: str = ""  # a new folder in the run's output, in which every node must be able to write
    salt: bytes = b""  # random bytes for the digests of secrets
    judge: JudgeSettings | None = None  # the settings under which isolation is checked, on nodes that judge


@dataclass(frozen=True, slots=True)
class Facts:
    """A node as it sees itself. In a field that says why something fails, an empty text means that it works."""

    node: Node  # as Ray counts it
    python: str
    environment: str  # `sys.prefix`, without symbolic links
    code: tuple[str, str]  # the checkout that `cobalt` is imported from, and a digest of its code
    packages: Mapping[str, str]  # the version of each
    cuda: bool  # whether the packages are those of the profile gpu
    isolation: str  # why programs cannot be isolated
    gpus: Sequence[str]  # the name and memory of each, as the driver lists them
    driver: str  # its version
    compiler: str  # why kernels for the GPUs cannot be compiled
    paths: Mapping[str, str]  # the digest of each path of the question
    output: str  # why the output cannot be shared
    hub_model: bool  # whether the model is in the hub's cache or may be downloaded
    disks: Mapping[str, tuple[float, float]]  # free and total GiB at "output" (if asked), "/tmp" and "/dev/shm"
    interfaces: Sequence[str]  # the names of the network interfaces
    unknown: str  # variables that name no network interface of the node
    secrets: Mapping[str, str]  # the salted digest of each variable that holds a secret of a run


def look(node: Node, question: Question) -> Facts:
    """Describe the machine of this process; takes some seconds if isolation is checked."""
    root = Path(cobalt.__file__).resolve().parents[1]
    packages = {dist.name.lower(): dist.version for dist in importlib.metadata.distributions() if dist.name}
    cuda = "nvidia-cuda-runtime" in packages
    gpus, driver = _gpus()
    judge = question.judge
    disks = {"output": question.shared, "/tmp": "/tmp", "/dev/shm": "/dev/shm"}
    usage = {name: shutil.disk_usage(path) for name, path in disks.items() if path and Path(path).is_dir()}
    interfaces = [name for _, name in socket.if_nameindex()]
    wanted = {name: os.environ.get(name, "^") for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")}
    held = secrets_of_a_run(os.environ)
    return Facts(
        node=node,
        python=platform.python_version(),
        environment=str(Path(sys.prefix).resolve()),
        code=(str(root), digest(root, *_CODE)),
        packages=packages,
        cuda=cuda,
        isolation=_why(lambda: asyncio.run(require_isolation(judge))) if judge else "",
        gpus=gpus,
        driver=driver,
        compiler=gpu_compiler.missing() if gpus and cuda else "",
        paths={name: digest(Path(path)) for name, path in question.paths.items()},
        output=_why(Path(question.shared, node.id).touch) if question.shared else "",
        hub_model=not question.hub_model or _in_cache_or_online(question.hub_model),
        disks={name: (disk.free / _GIB, disk.total / _GIB) for name, disk in usage.items()},
        interfaces=interfaces,
        unknown=", ".join(f"{name}={value}" for name, value in wanted.items() if not _names_any(value, interfaces)),
        secrets={name: hmac.digest(question.salt, value.encode(), "sha256").hex() for name, value in held.items()},
    )


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


def _gpus() -> tuple[list[str], str]:
    """Name and memory of each GPU, and the version of the driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return [], ""
    rows = [line.rpartition(", ") for line in listed.splitlines()]
    return [gpu for gpu, _, _ in rows], rows[0][2] if rows else ""


def _in_cache_or_online(hub_model: str) -> bool:
    from huggingface_hub import constants, try_to_load_from_cache

    return not constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(hub_model, "config.json"), str)


def _names_any(value: str, interfaces: Sequence[str]) -> bool:
    """Whether a variable of NCCL or Gloo names an interface: beginnings of names, after "^" those not to be used."""
    return value.startswith("^") or any(name.startswith(tuple(value.lstrip("=").split(","))) for name in interfaces)


Answers = Mapping[Node, Facts | str]  # the facts of each node, or why it did not answer
Rule = tuple[Callable[[Facts, Facts], tuple[Any, ...]], Callable[..., bool], str]
"""A fact of a node (beside the launcher), a wish about its values, and what to say with them if it is not met."""

# fmt: off
RULES: tuple[Rule, ...] = (
    (lambda node, launcher: (node.python, launcher.python), eq, "its Python is {}, the launcher's {}"),
    (lambda node, launcher: (node.environment, launcher.environment), eq,
     "its Ray runs in the environment {}, the launcher in {}: activate the same before `scripts/ray_cluster.sh join`"),
    (lambda node, launcher: (_names_of(node.packages.items() ^ launcher.packages.items()),), not_,
     "its packages have other versions than the launcher's ({}): run scripts/setup.sh there"),
    (lambda node, launcher: (node.code, launcher.code), eq,
     "its code in {0[0]} is not that of the launcher's checkout {1[0]}"),
    (lambda node, _: (node.isolation,), not_,
     "it cannot judge programs: {}. To judge on other nodes, start those with --resources='{{\"judge\": CORES}}'"),
    (lambda node, _: (node.node.gpus if node.cuda else 0, len(node.gpus)), le,  # without CUDA they are logical ones
     "Ray counts {:g} GPUs there, and nvidia-smi lists {}"),
    (lambda node, _: (580, node.driver if node.cuda else ""),
     lambda oldest, driver: not driver or oldest <= int(driver.partition(".")[0]),
     "CUDA 13 needs a GPU driver of {} or newer, and its driver is {}"),
    (lambda node, _: (node.compiler,), not_, "{}"),
    (lambda node, launcher: (_names_of(launcher.paths.items() - {one for one in node.paths.items() if one[1]}),), not_,
     "it does not see the launcher's files ({}): all nodes must share a file system that has them at the same path"),
    (lambda node, _: (node.output,), not_, "it cannot make a file in the launcher's output folder: {}"),
    (lambda node, _: (node.hub_model,), bool, "its hub cache (HF_HOME) lacks the model, and HF_HUB_OFFLINE is set"),
    (lambda node, _: (1, node.disks.get("output", (1, 1))[0]), le,
     "the output's disk needs {} GiB or more, and has {:.1f} GiB free"),
    (lambda node, _: (0.05, node.disks["/tmp"][0] / node.disks["/tmp"][1]), le,
     "Ray writes no objects to a /tmp with less than {:.0%} free, and its /tmp has {:.0%}"),
    (lambda node, _: (max(1, node.node.object_store / _GIB), node.disks["/dev/shm"][1]), le,
     "Ray and the exchange between GPUs need {:.1f} GiB of shared memory: its /dev/shm has {:.1f} (docker --shm-size)"),
    (lambda node, _: (node.unknown, ", ".join(node.interfaces)), lambda unknown, _: not unknown,
     "{} names no network interface there (it has {})"),
    (lambda node, launcher: (_names_of(launcher.secrets.items() - node.secrets.items()), node.node),
     lambda names, node: not names or not (node.cpus or node.gpus),  # a node that does nothing but judge needs none
     "its Ray was started without the launcher's {0}: secrets are not sent through Ray, so set them before"
     " `scripts/ray_cluster.sh start` and `join`, or unset them here"),
)
# fmt: on


def _names_of(items: Collection[tuple[str, str]]) -> str:
    names = sorted({name for name, _ in items})
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def findings(answers: Answers, launcher: Facts) -> list[tuple[str, str]]:
    """What would stop a run: a host and a sentence each."""
    wrong = []
    for node, facts in answers.items():
        if isinstance(facts, str):
            needed = f"this checkout must be at {launcher.code[0]} there, with its .venv"
            wrong.append((node.host, f"it does not answer ({facts}): {needed}"))
            continue
        for fact, wish, sentence in RULES:
            values = fact(facts, launcher)
            if not wish(*values):
                wrong.append((node.host, sentence.format(*values)))
    if not judging(list(answers)):
        wrong.append(("cluster", "no node can judge programs: none has CPUs or the resource 'judge'"))
    return wrong


def node_table(answers: Answers, wrong: Sequence[tuple[str, str]]) -> Table:
    """One row for each node; what is wrong with a node is said below the table."""
    columns = ("node", "address", "CPUs", "judges", "GPUs", "driver", "Python", "free GiB", "finding")
    table = Table(*columns, title=f"{len(answers)} nodes")
    count, judges = Counter(host for host, _ in wrong), judging(list(answers))
    for node, facts in answers.items():
        cells = ["-"] * 4
        if isinstance(facts, Facts):
            gpus = [f"{number} x {gpu}" for gpu, number in Counter(facts.gpus).items()]
            free = [f"{name} {gib:.0f}" for name, (gib, _) in facts.disks.items()]
            cells = [", ".join(gpus) or "-", facts.driver or "-", facts.python, ", ".join(free)]
        finding = f"[red]{count[node.host]} wrong[/red]" if count[node.host] else "[green]ok[/green]"
        table.add_row(node.host, node.address, f"{node.cpus:g}", "yes" if node.id in judges else "no", *cells, finding)
    return table


def await_nodes(count: int, seconds: float) -> list[Node]:
    """The nodes of the cluster that this process has joined, once it has so many; UserError after so many seconds."""
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_fixed(1.0),
        retry=tenacity.retry_if_result(lambda nodes: len(nodes) < count),
        retry_error_callback=lambda _: living_nodes(),
    )
    nodes = attempts(living_nodes)
    if len(nodes) < count:
        hosts = ", ".join(node.host for node in nodes)
        joining = "see the output of `scripts/ray_cluster.sh join` on the others"
        raise UserError(f"the cluster has {len(nodes)} of {count} nodes after {seconds:g} s ({hosts}): {joining}")
    return nodes


def survey(nodes: Sequence[Node], question: Question, judge: JudgeSettings, seconds: float) -> Answers:
    """Ask the nodes, which have the variables that a run's processes get; all together may take so many seconds."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0, runtime_env={"env_vars": passed_on(os.environ)})(look)
    judges = judging(nodes)
    asked = {
        node: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(
            node, replace(question, judge=judge if node.id in judges else None)
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
    folder_of_model = model_path(arguments.model) if arguments.model else None
    if folder_of_model is None and arguments.model and arguments.model.count("/") != 1:
        folder_of_model = Path(arguments.model)  # which is not there, and no name of the hub either
    hub_model = (arguments.model or "") if folder_of_model is None else ""
    inputs = {"data_dir": arguments.data_dir, "model": folder_of_model}
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
        question = Question(paths, hub_model, folder if output else "", os.urandom(16))
        answers = survey(nodes, question, judge, arguments.seconds)
        wrong = findings(answers, look(this_node(), question))
    Console(width=None if sys.stdout.isatty() else 200).print(node_table(answers, wrong))
    for host, sentence in wrong:
        sys.stderr.write(f"error: {host}: {sentence}\n")
    return 2 if wrong else 0


if __name__ == "__main__":
    from cobalt.serving import preflight  # under the name by which the nodes import it, not as __main__

    run_script(preflight.Arguments, preflight.main)
