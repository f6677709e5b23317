"""What of the nodes' reports would stop a run, as sentences. Nothing is asked here, so that every rule can be tested.

A node is compared with the launcher, which is the machine of the process that starts the run.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cobalt.serving.preflight.report import Answer, NodeReport, Verdict

_GIB = 2**30
_LEAST_OUTPUT = _GIB
_LEAST_SHM = _GIB
_FULL = 0.95  # beyond it Ray stops writing objects to a disk
_CLOCK_SECONDS = 5.0
_NAMED = 5
_DRIVERS = {"13": 580, "12": 525}
"""The oldest driver for each version of CUDA."""

_CUDA = "nvidia-cuda-runtime"
"""The package that a build of torch for GPUs brings."""

_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class _Finding:
    stops: bool
    sentence: str


def judge_reports(reports: list[NodeReport], launcher: Answer, *, offline: bool = False) -> Verdict:
    """Every rule for every node.

    Args:
        reports: One report of each node.
        launcher: What the launcher's machine is like, for the same question.
        offline: Whether the hub may not be asked (`HF_HUB_OFFLINE`).
    """
    verdict = Verdict()
    hosts = {report.host for report in reports}
    drivers = {report.answer.driver for report in reports if report.answer and report.answer.driver}
    for report in reports:
        answer = report.answer
        if answer is None:
            verdict.errors.append(
                (
                    report.host,
                    f"it does not answer ({report.failure}): this checkout and its .venv must be at the same path there"
                    f" ({launcher.code[0]})",
                )
            )
            continue
        findings = [
            *_network(report, answer, several=len(hosts) > 1),
            *_versions(answer, launcher),
            *_isolation(answer),
            *_gpus(report, answer, drivers),
            *_paths(report, answer, launcher, offline=offline),
            *_disks(report, answer),
            *_variables(report, answer, launcher),
            *_clock(report),
        ]
        for finding in findings:
            (verdict.errors if finding.stops else verdict.notes).append((report.host, finding.sentence))
    if not any(report.judges for report in reports):
        verdict.errors.append(("cluster", "no node can judge programs: none has CPUs or the resource 'judge'"))
    return verdict


def _error(sentence: str) -> _Finding:
    return _Finding(True, sentence)


def _note(sentence: str) -> _Finding:
    return _Finding(False, sentence)


def _network(report: NodeReport, answer: Answer, *, several: bool) -> Iterator[_Finding]:
    if several and report.address.startswith("127."):
        yield _error(
            f"its address for the other nodes is {report.address}: start Ray on an interface that they reach"
            " (scripts/ray_cluster.sh --interface NAME)"
        )
    if report.unreachable:
        yield _error(
            f"it cannot connect to free ports of {', '.join(report.unreachable)}: open the firewall between the"
            " nodes, or choose another interface"
        )
    for name in _INTERFACES:
        if not _has_interface(answer.values.get(name, ""), answer.interfaces):
            yield _error(
                f"{name}={answer.values[name]} names no interface there (it has {', '.join(answer.interfaces)})"
            )


def _has_interface(value: str, interfaces: Sequence[str]) -> bool:
    """Whether a node has an interface that a variable of NCCL or Gloo asks for.

    The variable has beginnings of names, after "=" whole names, and after "^" names that are not to be used.
    """
    if not value or value.startswith("^"):
        return True
    whole = value.startswith("=")
    names = [name.partition(":")[0] for name in value.removeprefix("=").split(",")]
    return any(found == name if whole else found.startswith(name) for found in interfaces for name in names)


def _versions(answer: Answer, launcher: Answer) -> Iterator[_Finding]:
    if answer.python != launcher.python:
        yield _error(f"its Python is {answer.python}, the launcher's {launcher.python}")
    if answer.environment != launcher.environment:
        yield _error(
            f"its Ray runs in the environment {answer.environment}, the launcher in {launcher.environment}:"
            " activate the same one before `scripts/ray_cluster.sh join`"
        )
    names = sorted(answer.packages.keys() | launcher.packages.keys())
    other = [
        f"{name} {answer.packages.get(name, 'missing')} for {launcher.packages.get(name, 'none')}"
        for name in names
        if answer.packages.get(name) != launcher.packages.get(name)
    ]
    if other:
        more = f" and {len(other) - _NAMED} more" if len(other) > _NAMED else ""
        yield _error(f"its packages differ: {', '.join(other[:_NAMED])}{more}: run scripts/setup.sh there")
    if answer.code != launcher.code:
        where = f"at {answer.code[0]} " if answer.code[0] != launcher.code[0] else ""
        yield _error(f"its code {where}is not that of the launcher's checkout {launcher.code[0]}")


def _isolation(answer: Answer) -> Iterator[_Finding]:
    if answer.isolation:
        yield _error(
            f"it cannot judge programs: {answer.isolation}. To judge on other nodes only, start those with"
            " --resources='{\"judge\": CORES}'"
        )


def _gpus(report: NodeReport, answer: Answer, drivers: set[str]) -> Iterator[_Finding]:
    cuda = answer.packages.get(_CUDA, "").partition(".")[0]
    if report.gpus > len(answer.gpus):
        sentence = f"Ray counts {report.gpus:g} GPUs there, and nvidia-smi lists {len(answer.gpus)}"
        yield _error(sentence) if cuda else _note(f"{sentence}: they are logical ones, for a run on CPUs")
    if not answer.gpus:
        return
    oldest = _DRIVERS.get(cuda)
    number = re.match(r"\d+", answer.driver)
    if oldest is not None and number is not None and int(number[0]) < oldest:
        yield _error(f"its GPU driver is {answer.driver}, and the installed CUDA {cuda} needs {oldest} or newer")
    if cuda and answer.compiler:
        yield _error(answer.compiler)
    if len(drivers) > 1:
        yield _note(
            f"its GPU driver is {answer.driver}; other nodes have {', '.join(sorted(drivers - {answer.driver}))}"
        )


def _paths(report: NodeReport, answer: Answer, launcher: Answer, *, offline: bool) -> Iterator[_Finding]:
    for name, found in answer.paths.items():
        if not launcher.paths[name]:
            yield _error(f"the launcher itself does not see the {name}")
        elif not found:
            yield _error(
                f"it does not see the {name} at the launcher's path: it must be on a file system that all share"
            )
        elif found != launcher.paths[name]:
            yield _error(f"its {name} has other files than the launcher's at the same path")
    if answer.output:
        yield _error(f"the output is not shared: {answer.output}")
    elif answer.output == "" and not report.seen_by_launcher:
        yield _error("the output is not shared: the launcher does not see the file that the node wrote")
    if answer.hub_model is False:
        if offline:
            yield _error("the model is not in its hub cache (HF_HOME), and HF_HUB_OFFLINE is set")
        else:
            yield _note("the model is not in its hub cache: the run will download it there")


def _disks(report: NodeReport, answer: Answer) -> Iterator[_Finding]:
    output, tmp, shm = answer.disks.get("output"), answer.disks["/tmp"], answer.disks["/dev/shm"]
    if output is not None and output.free < _LEAST_OUTPUT:
        yield _error(f"the output's disk has {output.free / _GIB:.1f} GiB free")
    if tmp.free < (1 - _FULL) * tmp.total:
        yield _error(f"its /tmp is {1 - tmp.free / tmp.total:.0%} full, and Ray stops writing there at {_FULL:.0%}")
    if shm.total < max(_LEAST_SHM, report.object_store):
        yield _error(
            f"its /dev/shm has {shm.total / _GIB:.1f} GiB, and {max(_LEAST_SHM, report.object_store) / _GIB:.1f}"
            " are needed for the objects of Ray and the exchange between GPUs (docker run --shm-size)"
        )


def _variables(report: NodeReport, answer: Answer, launcher: Answer) -> Iterator[_Finding]:
    lost = [name for name, value in launcher.values.items() if answer.values.get(name) != value]
    if lost:
        yield _error(f"variables of the launcher do not reach it: {', '.join(lost)}")
    secret = [name for name, value in launcher.digests.items() if answer.digests.get(name) != value]
    only_judges = report.judges and not report.cpus and not report.gpus  # programs alone run there: better without any
    if secret and not only_judges:
        yield _error(
            f"its Ray was not started with the launcher's {', '.join(secret)}: secrets are not sent through Ray, so"
            " set them before `scripts/ray_cluster.sh start` and `join`, or unset them here"
        )


def _clock(report: NodeReport) -> Iterator[_Finding]:
    if abs(report.clock) - report.clock_error > _CLOCK_SECONDS:
        ahead = "ahead of" if report.clock > 0 else "after"
        yield _note(f"its clock is {abs(report.clock):.0f} s {ahead} the launcher's: run a time service on all nodes")
