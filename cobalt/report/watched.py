"""Data that `cobalt watch` shows of a training run, read from its folder alone while the run may be writing it.

Everything can be written as JSON. A last line of metrics that is not whole yet is left out, as are values that are not
finite; steps that a resumed run made again count once.
"""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cobalt.report.curves import METRICS, REWARD, read_metrics, validation_solved
from cobalt.report.rollouts import recorded_steps
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import recorded_arguments

_Metrics = Mapping[str, float]
_LOG = "train.log"
_LOG_END = 65536  # bytes, in which the last phase line is looked for
_PHASE = re.compile(r"\[progress\] (.+)")

_STAGES = {"train": "online", "offline": "offline"}
"""Kinds of training by the stage of the run's manifest."""


def _seconds(metrics: _Metrics, whole: str, *parts: str) -> float | None:
    """Seconds of a timed phase without those of its parts; None where it was not timed."""
    of_parts = sum(metrics.get(f"timing_s/{part}", 0.0) for part in parts)
    return metrics[f"timing_s/{whole}"] - of_parts if f"timing_s/{whole}" in metrics else None


_FIGURES: dict[tuple[str, str], dict[str, str | Callable[[_Metrics], float | None]]] = {
    ("Reward", "mean over samples"): {"reward": REWARD},
    ("Solved", "share"): {
        "samples that pass all tests": "reward/acc",
        "validation": validation_solved,
        "groups of equal rewards": "reward/equal_groups",
    },
    ("Log-probability of validation responses", "nats a token"): {
        "accepted": "validation/accepted_log_prob",
        "others": "validation/other_log_prob",
    },
    ("Response length", "tokens"): {
        "mean": lambda m: (
            m["training/response_tokens"] / m["training/responses"]  # offline
            if m.get("training/responses")
            else m.get("response_length/mean")
        ),
        "longest": "response_length/max",
    },
    ("KL", "nats a token"): {
        "to the starting policy": "actor/kl_loss",
        "to the policy that sampled": "actor/ppo_kl",
        "validation, to the starting policy": "validation/kl",
    },
    ("Gradient norm", "before clipping"): {"gradient": "actor/grad_norm"},
    ("Time of a step by phase", "seconds"): {
        "update": lambda m: _seconds(m, "update_actor" if "timing_s/gen" in m else "step"),  # all of an offline step
        "generate": lambda m: _seconds(m, "gen", "reward_wait"),
        "wait for the last verdicts": "timing_s/reward_wait",
        "reference": "timing_s/ref",
        "checkpoint": "timing_s/save_checkpoint",
        "all else": lambda m: (
            _seconds(m, "step", "gen", "update_actor", "ref", "save_checkpoint") if "timing_s/gen" in m else None
        ),
        "validation": "timing_s/testing",
    },
}
"""Title, unit and curves of each figure; a curve is a metric or is computed of them."""


def watched(run: Path) -> dict[str, Any]:
    """The state of a training run.

    Returns:
        `name`; `kind`, "online" or "offline"; `made_of`, its choices as words; `phase`, where it is, by its log, or "";
        `failure`, why it stopped or ""; `finished`, whether its policy was exported after its last step;
        `changed`, when metrics or log were last written, in seconds since 1970; `figures`, those that have a value,
        each `{title, unit, stacked, curves}` with `curves` a list of `{name, points}` and `points` of [step, value];
        `recorded`, the steps with rollouts.

    Raises:
        UserError: the folder is not one of a training run, or its metrics are malformed.
    """
    arguments = recorded_arguments(run / METRICS) or {}
    stage = arguments.get("stage", "train")
    if not (run / METRICS).exists() and not arguments:
        raise UserError(f"{run} is not the folder of a training run (it has no {METRICS}): give its --output_dir")
    if stage not in _STAGES:
        raise UserError(f"{run} is a result of stage {stage!r}, not of training: `cobalt view` shows evaluated runs")
    steps = dict(read_metrics(run, unfinished=True)) if (run / METRICS).exists() else {}
    log, failure, model = run / _LOG, run / "failure.txt", run / "model" / "config.json"
    written = [path.stat().st_mtime for path in (run / METRICS, log) if path.exists()]
    choices = arguments.get("choices") or {"estimator": arguments.get("offline", {}).get("estimator")}
    return {
        "name": run.resolve().name,
        "kind": _STAGES[stage],
        "made_of": ", ".join(f"{name} {choice}" for name, choice in choices.items() if choice),
        "phase": _progress(log, max(steps, default=0)),
        "failure": failure.read_text(encoding="utf-8", errors="replace").strip() if failure.exists() else "",
        "finished": bool(steps) and model.exists() and model.stat().st_mtime >= (run / METRICS).stat().st_mtime,
        "changed": max(written, default=0.0),
        "figures": [figure for names, curves in _FIGURES.items() if (figure := _figure(*names, curves, steps))],
        "recorded": recorded_steps(run),
    }


def _figure(title: str, unit: str, curves: Mapping[str, Any], steps: Mapping[int, _Metrics]) -> dict[str, Any] | None:
    drawn = []
    for name, metric in curves.items():
        values = [(s, metric(m) if callable(metric) else m.get(metric)) for s, m in sorted(steps.items())]
        points = [[step, value] for step, value in values if value is not None and math.isfinite(value)]
        if points:
            drawn.append({"name": name, "points": points})
    return {"title": title, "unit": unit, "stacked": unit == "seconds", "curves": drawn} if drawn else None


def _progress(log: Path, step: int) -> str:
    """The last phase line of a log, or that the last step is finished where it is of that step or of an earlier one."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_END))
        phases = _PHASE.findall(file.read().decode("utf-8", "replace"))
    phase = phases[-1].strip() if phases else ""
    counted = re.match(r"step (\d+) of (\d+)", phase)
    return f"step {step} of {counted[2]} finished" if counted and 0 < int(counted[1]) <= step else phase
