"""Ask every node of the cluster that this process has joined: one actor on each, and none remains.

An actor gets the variables that a run's processes get (`environment.passed_on`), so that a node reports what
they will see. Ray is imported inside the functions.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import tenacity

from cobalt.judge.settings import JudgeSettings
from cobalt.serving.nodes import judging, living_nodes
from cobalt.serving.preflight.probe import TOKEN_FILE, Probe
from cobalt.serving.preflight.report import Answer, NodeReport, Question
from cobalt.serving.serve_client import reason
from cobalt.stage.environment import passed_on
from cobalt.stage.errors import UserError


def survey(question: Question, *, output: Path | None, judge: JudgeSettings, seconds: float) -> list[NodeReport]:
    """A report of each node, ordered by address. The cluster must have been joined.

    Args:
        question: What every node is asked.
        output: The run's folder, which every node must be able to write to; None: it is not checked.
        judge: The settings under which the nodes that judge check isolation.
        seconds: How long all nodes together may take to answer.

    Raises:
        UserError: this machine cannot write to the output.
    """
    with _token_folder(output) as (folder, token):
        reports = _ask(replace(question, token_folder=folder, token=token), judge, seconds)
        if folder:
            reports = [replace(report, seen_by_launcher=_reads(Path(folder) / report.id, token)) for report in reports]
    return reports


def await_nodes(count: int, seconds: float) -> None:
    """Wait until the cluster has so many nodes.

    Raises:
        UserError: it has fewer after so many seconds.
    """

    def have_joined() -> list[str]:
        return [node.host for node in living_nodes()]

    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_fixed(1.0),
        retry=tenacity.retry_if_result(lambda hosts: len(hosts) < count),
        retry_error_callback=lambda _: have_joined(),
    )
    hosts = attempts(have_joined)
    if len(hosts) < count:
        raise UserError(
            f"the cluster has {len(hosts)} of {count} nodes after {seconds:g} s ({', '.join(hosts)}): see the output of"
            " `scripts/ray_cluster.sh join` on the others"
        )


def _ask(question: Question, judge: JudgeSettings, seconds: float) -> list[NodeReport]:
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = living_nodes()
    judges = judging(there)
    remote = ray.remote(num_cpus=0)(Probe)
    probes = {
        node.id: remote.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            runtime_env={"env_vars": passed_on(os.environ)},
        ).remote(node.address)
        for node in there
    }
    deadline = time.monotonic() + seconds

    def outcome(reference: Any) -> Any:
        """What an actor answered, or the exception."""
        try:
            return ray.get(reference, timeout=max(0.1, deadline - time.monotonic()))
        except GetTimeoutError:
            return TimeoutError(f"it did not answer within {seconds:g} s")
        except RayError as error:
            return error

    def all_outcomes(references: dict[str, Any]) -> dict[str, Any]:
        return {node_id: outcome(reference) for node_id, reference in references.items()}

    try:
        ports = all_outcomes({node_id: probe.listen.remote() for node_id, probe in probes.items()})
        listening = [(node, ports[node.id]) for node in there if isinstance(ports[node.id], int)]
        clocks = {node.id: _clock(outcome, probes[node.id]) for node, _ in listening}
        unreachable = all_outcomes({
            node.id: probes[node.id].unreachable.remote(
                [(other.host, other.address, port) for other, port in listening if other.id != node.id]
            )
            for node, _ in listening
        })  # fmt: skip
        answers = all_outcomes({
            node.id: probes[node.id].answer.remote(
                replace(question, judge=judge if node.id in judges else None), node.id
            )
            for node, _ in listening
        })  # fmt: skip
    finally:
        for probe in probes.values():
            ray.kill(probe)
    reports = []
    for node in there:
        found = answers.get(node.id, ports[node.id])
        blind = unreachable.get(node.id, [])
        clock, error = clocks.get(node.id, (0.0, 0.0))
        reports.append(
            NodeReport(
                id=node.id,
                host=node.host,
                address=node.address,
                cpus=node.cpus,
                gpus=node.gpus,
                object_store=node.object_store,
                judges=node.id in judges,
                answer=found if isinstance(found, Answer) else None,
                failure="" if isinstance(found, Answer) else reason(found),
                clock=clock,
                clock_error=error,
                unreachable=tuple(blind) if isinstance(blind, list) else (),
            )
        )
    return reports


def _clock(outcome: Any, probe: Any) -> tuple[float, float]:
    """Seconds by which a node's clock is ahead, and the most by which that may be wrong."""
    before = time.time()
    found = outcome(probe.clock.remote())
    after = time.time()
    if not isinstance(found, float):
        return 0.0, 0.0
    return found - (before + after) / 2, (after - before) / 2


@contextlib.contextmanager
def _token_folder(output: Path | None) -> Iterator[tuple[str, str]]:
    """A new folder in the output with the token file, and the token; two empty texts if there is no output.

    Raises:
        UserError: this machine cannot write to the output.
    """
    if output is None:
        yield "", ""
        return
    new = not output.exists()
    token = secrets.token_hex(16)
    try:
        output.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".preflight-", dir=output)
        (Path(folder) / TOKEN_FILE).write_text(token, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output_dir {output} cannot be written to on this machine: {error.strerror}") from None
    try:
        yield folder, token
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if new:
            with contextlib.suppress(OSError):  # something else has been put there meanwhile
                output.rmdir()


def _reads(path: Path, token: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == token
    except OSError:
        return False
