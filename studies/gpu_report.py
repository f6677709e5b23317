"""`python -m studies.gpu_report STUDY`: what a run of the GPU smoke profile shows, as a page.

The page has versions, the GPU, seconds and tokens per second by phase, peaks of memory, and the agreement of vLLM's and
the actor's probabilities. Everything but the versions is read from files that the study has left: `steps.jsonl`, the
evaluations of its trajectories, and the metrics of its training runs. Nothing is measured here.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.report.curves import METRICS, read_metrics
from cobalt.report.runs import EVALUATION
from cobalt.stage.atomic import replace_text
from cobalt.stage.cli import run_script
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.manifest import installed_version, recorded_arguments
from cobalt.stage.records import read_records
from studies.costs import collected
from studies.plan import STEPS_FILE

_PACKAGES = ("torch", "vllm", "verl", "flash-attn", "transformers", "ray")

_HEAD = ("phase", "s", "tokens", "tokens per second")
_ALL, _RESPONSES = "prompts and responses", "responses"

_PHASES = {
    "gen": ("generation, with the judge", _RESPONSES),
    "old_log_prob": ("log-probs of the actor", _ALL),
    "ref": ("log-probs of the reference", _ALL),
    "update_actor": ("update", _ALL),
    "update_weights": ("weights to vLLM", ""),
    "step": ("whole step", _ALL),
}
"""Phases of a training step by veRL's name: what they are, and the tokens that they work on."""

_MEMORY = {
    "actor/perf/max_memory_allocated_gb": "actor, allocated by torch",
    "actor/perf/max_memory_reserved_gb": "actor, reserved by torch",
    "actor/perf/cpu_memory_used_gb": "host, used by all processes",
}
"""veRL's peaks of memory in GiB, by metric."""

_DIFFERENCE = "training/rollout_probs_diff_mean"
_AGREEMENT = {
    _DIFFERENCE: "mean difference",
    "training/rollout_probs_diff_std": "standard deviation of the difference",
    "training/rollout_probs_diff_max": "largest difference",
    "training/rollout_actor_probs_pearson_corr": "correlation",
    "rollout_corr/log_ppl_abs_diff": "difference of a response's mean log-prob, nats",
    "rollout_corr/kl": "KL(vLLM, actor), nats a token",
}
"""Words for veRL's metrics that compare the probabilities of the sampled tokens under vLLM and under the actor."""

LARGEST_DIFFERENCE = 0.05
"""The mean difference of the probabilities from which the check fails. bfloat16 alone gives a tenth of it; weights or
caches that were lost while the engine slept give several times as much (docs/training.md)."""


def _environment() -> Iterator[tuple[str, str]]:
    """The GPUs by nvidia-smi, the CUDA version that torch was built for, and the packages that decide the figures."""
    import torch

    query = "nvidia-smi --query-gpu=name,memory.total,compute_cap,driver_version --format=csv,noheader"
    gpus = subprocess.run(["bash", "-c", query], text=True, capture_output=True, check=False).stdout.splitlines()
    yield from ((f"GPU {index}", line.strip()) for index, line in enumerate(gpus))
    yield "CUDA of torch", torch.version.cuda or "none"
    yield from ((package, installed_version(package) or "not installed") for package in _PACKAGES)


def _phase(name: str, seconds: float, tokens: int | None = None, kind: str = _RESPONSES) -> Sequence[str]:
    """The row of a phase of work, by its wall time and the tokens worked on; None if these do not count."""
    if tokens is None:
        return name, f"{seconds:.1f}", "", ""
    return name, f"{seconds:.1f}", f"{tokens:,} ({kind})", f"{tokens / seconds:,.0f}" if seconds else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _training(run: Path) -> tuple[list[str], float]:
    """The part of the page about a training run, and the mean difference of vLLM's and the actor's probabilities.

    That is the value of the worst step; 0 if the run did not compute the actor's.
    """
    trained = [metrics for _, metrics in read_metrics(run) if "timing_s/step" in metrics]
    timed = trained[1:] or trained
    tokens = {_ALL: 0.0, _RESPONSES: 0.0}
    for metrics in timed:  # veRL gives the tokens of prompts and responses together, and both mean lengths
        prompt, response = metrics["prompt_length/mean"], metrics["response_length/mean"]
        tokens[_ALL] += metrics["perf/total_num_tokens"]
        tokens[_RESPONSES] += metrics["perf/total_num_tokens"] * response / (prompt + response)
    phases = [
        _phase(name, sum(seconds), round(tokens[kind]) if kind else None, kind)
        for key, (name, kind) in _PHASES.items()
        if (seconds := [metrics[f"timing_s/{key}"] for metrics in timed if f"timing_s/{key}" in metrics])
    ]
    worst = {
        key: min(values) if "pearson" in key else max(values, key=abs)
        for key in (*_AGREEMENT, *_MEMORY)
        if (values := [metrics[key] for metrics in trained if key in metrics])
    }

    def shown(names: Mapping[str, str], form: str) -> list[tuple[str, str]]:
        return [(name, format(worst[key], form)) for key, name in names.items() if key in worst]

    parts = [
        f"## Training run {run.name}",
        f"Sums over {len(timed)} steps; the first step of a run, in which kernels are compiled, is left out.",
        _table(_HEAD, phases),
        "The sampled tokens under vLLM and under the actor, the worst of all steps:",
        _table(("of the probabilities", "value"), shown(_AGREEMENT, ".3g")),
        "Peaks of memory:",
        _table(("memory", "GiB"), shown(_MEMORY, ".1f")),
    ]
    return parts, worst.get(_DIFFERENCE, 0.0)


def _gpu_memory(samples: Path) -> str:
    """The part of the page about the GPU's memory. Raises UserError if the file has no samples."""
    try:
        used = max(float(line.rpartition(",")[2]) for line in samples.read_text().splitlines() if line)
    except (OSError, ValueError):
        raise UserError(f"{samples} has no samples of nvidia-smi, or something else") from None
    return f"## Memory of the GPU\n\nAt most {used / 1024:.1f} GiB in use by all processes, sampled every two seconds."


@dataclass(frozen=True)
class Arguments:
    """Write the report of a study that ran with --profile gpu-smoke."""

    study: tyro.conf.Positional[Path]
    """Folder of the study."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The page (markdown); it is replaced."""
    memory_file: Path | None = None
    """Samples of the GPU's memory in use in MiB, one a line, as scripts/gpu_check.sh takes them."""


def main(arguments: Arguments) -> int:
    """Write the page and print it; returns the exit code.

    Raises InfrastructureError if vLLM samples from another policy than the one that is trained; the page is written.
    """
    steps, training, apart, total = [], [], [], 0.0
    records = {record["step"]: record for record in read_records(arguments.study / STEPS_FILE, unfinished=True)}
    for name, record in records.items():
        seconds, files = record["seconds"] - record["services_seconds"], list(map(Path, record["files"]))
        tokens = [collected(path)[0] for path in files if path.name == EVALUATION]
        steps.append(_phase(name, seconds, tokens[0] if tokens else None))
        total += seconds
        for path in (path for path in files if path.name == METRICS):
            parts, difference = _training(path.parent)
            training += parts
            apart += [f"{name} ({difference:.3g})"] if not difference <= LARGEST_DIFFERENCE else []
    settings = recorded_arguments(arguments.study / STEPS_FILE) or {}
    page = [
        "# The smoke profile on a GPU",
        "Written by `scripts/gpu_check.sh` (`--profile gpu-smoke`) with"
        f" {settings.get('model') or 'the seed model of the pocket world'}, seed {settings.get('seed', 0)}."
        " The sizes are those of `cobalt_verl/config/scale/gpu-smoke.yaml`; nothing is learned at them.",
        "## Machine and versions",
        _table(("what", "version"), _environment()),
        "## Steps",
        "Wall time of each step, without the start of its services and with the judge. Tokens are those of responses.",
        _table(_HEAD, [*steps, ("all", f"{total:.1f}", "", "")]),
        *training,
        *([_gpu_memory(arguments.memory_file)] if arguments.memory_file else []),
    ]
    text = "\n\n".join(page) + "\n"
    replace_text(arguments.output_file, text)
    sys.stdout.write(text)
    if apart:
        raise InfrastructureError(
            f"in {', '.join(apart)} the mean difference of vLLM's and the actor's probabilities is above"
            f" {LARGEST_DIFFERENCE}: vLLM does not sample from the policy that is trained (docs/training.md, on"
            " rollout_probs_diff)"
        )
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
