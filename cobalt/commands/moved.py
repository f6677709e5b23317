"""Modules that were at another path: where they are, and what an old path does.

`python -m` still runs the two that are public under their old names. Any other old path ends with one sentence.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec

MOVED = {
    "cobalt.atomic": "cobalt.stage.atomic",
    "cobalt.cli": "cobalt.stage.cli",
    "cobalt.cluster": "cobalt.training.cluster",
    "cobalt.contexts": "cobalt.selection",
    "cobalt.contexts.perturbation": "cobalt.hacking.perturbation",
    "cobalt.conversation": "cobalt.episode",
    "cobalt.conversation.extraction": "cobalt.episode.program",
    "cobalt.datasets.evalplus_check": "cobalt.judge.inside.evalplus_check",
    "cobalt.datasets.judged_readings": "cobalt.datasets.readings",
    "cobalt.datasets.literals": "cobalt.datasets.readings",
    "cobalt.datasets.numpy_stand_in": "cobalt.judge.inside.numpy_stand_in",
    "cobalt.datasets.offline.judged_record": "cobalt.datasets.offline.results",
    "cobalt.datasets.offline.near_duplicates": "cobalt.datasets.offline.similarity",
    "cobalt.datasets.offline.similar_statements": "cobalt.datasets.offline.similarity",
    "cobalt.datasets.pocket": "cobalt.pocket",
    "cobalt.datasets.tally": "cobalt.stage.tally",
    "cobalt.datasets.verl_flags": "cobalt.selection.verl_rows",
    "cobalt.datasets.verl_rows": "cobalt.selection.verl_rows",
    "cobalt.diversity": "cobalt.rollout.diversity",
    "cobalt.engine.openai_routes": "cobalt.serving.openai_routes",
    "cobalt.engine.vllm_service": "cobalt.serving.engine_app",
    "cobalt.entry": "cobalt.stage.entry",
    "cobalt.environment": "cobalt.stage.environment",
    "cobalt.episode.trajectory_codec": "cobalt.episode.record",
    "cobalt.errors": "cobalt.stage.errors",
    "cobalt.files": "cobalt.stage.files",
    "cobalt.gpu_compiler": "cobalt.training.gpu_compiler",
    "cobalt.http_guard": "cobalt.serving.http_guard",
    "cobalt.hub": "cobalt.problems.hub",
    "cobalt.judge.call_driver": "cobalt.judge.inside.call_driver",
    "cobalt.judge.cgroups": "cobalt.judge.sandbox.cgroups",
    "cobalt.judge.checker": "cobalt.judge.inside.checker",
    "cobalt.judge.isolation": "cobalt.judge.sandbox.isolation",
    "cobalt.judge.placement": "cobalt.serving.nodes",
    "cobalt.judge.recheck": "cobalt.datasets.recheck",
    "cobalt.judge.sandbox_fusion": "cobalt.serving.sandbox_fusion",
    "cobalt.judge.script_driver": "cobalt.judge.inside.script_driver",
    "cobalt.judge.client": "cobalt.judge.url_judge",
    "cobalt.judge.service": "cobalt.serving.judge_app",
    "cobalt.judge.service_settings": "cobalt.serving.settings",
    "cobalt.manifest": "cobalt.stage.manifest",
    "cobalt.metrics": "cobalt.rollout.metrics",
    "cobalt.nodes": "cobalt.serving.nodes",
    "cobalt.offline_groups": "cobalt.datasets.offline.groups",
    "cobalt.parquet_rows": "cobalt.stage.parquet_rows",
    "cobalt.preflight": "cobalt.serving.preflight",
    "cobalt.problem": "cobalt.problems.problem",
    "cobalt.progress": "cobalt.stage.progress",
    "cobalt.records": "cobalt.stage.records",
    "cobalt.report.gpu": "studies.gpu_report",
    "cobalt.rollout.runner": "cobalt.stage.run",
    "cobalt.report.samples": "cobalt.report.terminal",
    "cobalt.report.turns": "cobalt.report.terminal",
    "cobalt.retrying": "cobalt.stage.retrying",
    "cobalt.reward.correctness": "cobalt.reward.reward",
    "cobalt.reward.improvement": "cobalt.reward.reward",
    "cobalt.rows": "cobalt.stage.rows",
    "cobalt.serve_client": "cobalt.serving.ray_serve",
    "cobalt.serve_proxy": "cobalt.serving.serve_proxy",
    "cobalt.serve_state": "cobalt.stage.serve_state",
    "cobalt.service_logs": "cobalt.training.private_ray",
    "cobalt.services": "cobalt.serving.services",
    "cobalt.settings": "cobalt.stage.settings",
    "cobalt.studies": "studies",
    "cobalt.templates": "cobalt.episode.templates",
    "cobalt.training.divergence": "studies.divergence",
    "cobalt.trajectory": "cobalt.episode.trajectory",
    "cobalt.trajectory_codec": "cobalt.episode.record",
    "cobalt.watcher": "cobalt.training.ray_watcher",
    "cobalt.workers": "cobalt.stage.workers",
}
"""Old path: new path. What was below an old path is below its new one."""

RUN = {"cobalt.preflight": "cobalt.serving.preflight", "cobalt.services": "cobalt.serving.services"}
"""What `python -m` runs under a name that is public and is not the module's path."""


def find(name: str) -> ModuleSpec | None:
    """The module that `python -m NAME` runs; None if this project never had a module of this name.

    Raises:
        ModuleNotFoundError: code imports a module by an old path; the message names the new one.
        SystemExit: `python -m` is asked to run such a module.
    """
    started = sys.argv[:1] == ["-m"]
    if started and name in RUN:
        found = importlib.util.find_spec(RUN[name])
        return found and importlib.util.spec_from_file_location(name, found.origin)
    old = max((old for old in MOVED if f"{name}.".startswith(f"{old}.")), key=len, default=None)
    if old is None:
        return None
    moved = f"{name} has moved to {MOVED[old]}{name.removeprefix(old)}"
    if started:
        sys.stderr.write(f"error: {moved}\n")
        sys.exit(2)
    raise ModuleNotFoundError(moved, name=name)
