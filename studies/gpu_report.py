"""`python -m studies.gpu_report STUDY`: what a run of the GPU smoke profile shows, as a page.

The page has versions, the GPU, seconds and tokens per second by phase, peaks of memory, and the agreement of vLLM's and
the actor's probabilities. Everything but the versions is read from files that the study has left: `steps.jsonl`, the
evaluations of its trajectories, and the metrics of its training runs. Nothing is measured here.
"""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

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

_PHASE_HEAD = ("phase", "s", "tokens", "tokens per second")
_ALL, _RESPONSES = "prompts and responses", "responses"

_PHASES = {
    "gen": ("generation, with the judge", _RESPONSES),
    "old_log_prob": ("log-probs of the actor", _ALL),
    "ref": ("log-probs of the reference", _ALL),
    "update_actor": ("update", _ALL),
    "update_weights": ("weights to vLLM", None),
    "step": ("whole step", _ALL),
}
"""Phases of a training step by veRL's name: what they are, and the tokens that they work on."""

_MEMORY = {
    "actor/perf/max_memory_allocated_gb": "actor, allocated by torch",
    "actor/perf/max_memory_reserved_gb": "actor, reserved by torch",
    "actor/perf/cpu_memory_used_gb": "host, used by all processes",
}
"""veRL's peaks of memory in GiB, by metric."""

_AGREEMENT = {
    "training/rollout_probs_diff_mean": "mean difference",
    "training/rollout_probs_diff_std": "standard deviation of the difference",
    "training/rollout_probs_diff_max": "largest difference",
    "training/rollout_actor_probs_pearson_corr": "correlation",
    "rollout_corr/log_ppl_abs_diff": "difference of a response's mean log-prob, nats",
    "rollout_corr/kl": "KL(vLLM, actor), nats a token",
}
"""What veRL says of the probabilities of the sampled tokens under vLLM and under the actor, by metric."""

LARGEST_DIFFERENCE = 0.05
"""The mean difference of the probabilities from which the check fails. bfloat16 alone gives a tenth of it; weights or
caches that were lost while the engine slept give several times as much (docs/training.md)."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of work: its wall time, and the number and kind of the tokens worked on; None if these do not count."""

    name: str
    seconds: float
    tokens: int | None = None
    kind: str = ""

    @property
    def rate(self) -> float | None:
        """Tokens per second."""
        return None if self.tokens is None or not self.seconds else self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """What the metrics of a training run show.

    Attributes:
        name: Of the run.
        steps: Number of steps in the phases: all but the first one, which compiles, if there are more.
        phases: Their sums over these steps.
        memory: Peaks in GiB, of all steps, by what they are of.
        agreement: Of vLLM's and the actor's probabilities: the value furthest from 0 of all steps, of correlations the
            smallest; empty if the run did not compute the actor's.
    """

    name: str
    steps: int
    phases: Sequence[Phase]
    memory: Mapping[str, float]
    agreement: Mapping[str, float]


def training_figures(run: Path) -> TrainingFigures:
    """The figures of a training run, from its folder.

    Raises UserError if the metrics are missing or malformed, or no step was trained.
    """
    trained = [metrics for _, metrics in read_metrics(run) if "timing_s/step" in metrics]
    if not trained:
        raise UserError(f"{run / METRICS} has no step of training")
    timed = trained[1:] or trained
    tokens = {_ALL: 0.0, _RESPONSES: 0.0}
    for metrics in timed:  # veRL gives the tokens of prompts and responses together, and both mean lengths
        prompt, response = metrics["prompt_length/mean"], metrics["response_length/mean"]
        tokens[_ALL] += metrics["perf/total_num_tokens"]
        tokens[_RESPONSES] += metrics["perf/total_num_tokens"] * response / (prompt + response)
    phases = []
    for key, (name, kind) in _PHASES.items():
        if seconds := _values(timed, f"timing_s/{key}"):
            phases.append(Phase(name, sum(seconds), None if kind is None else round(tokens[kind]), kind or ""))
    agreement = {
        name: min(values) if name == "correlation" else max(values, key=abs)
        for key, name in _AGREEMENT.items()
        if (values := _values(trained, key))
    }
    memory = {name: max(peaks) for key, name in _MEMORY.items() if (peaks := _values(trained, key))}
    return TrainingFigures(run.name, len(timed), phases, memory, agreement)


def _values(steps: Sequence[Mapping[str, float]], metric: str) -> list[float]:
    return [metrics[metric] for metrics in steps if metric in metrics]


def peak_memory(samples: Path) -> float:
    """The largest number of a file of GPU memory in use, in MiB, a sample a line; as GiB.

    Raises UserError if the file cannot be read, or has no sample.
    """
    try:
        values = [float(line.rpartition(",")[2]) for line in samples.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, ValueError):
        raise UserError(f"{samples} is not a list of samples of nvidia-smi") from None
    if not values:
        raise UserError(f"{samples} has no sample")
    return max(values) / 1024


def environment() -> dict[str, str]:
    """The GPUs by nvidia-smi, the CUDA version that torch was built for, and the packages that decide the figures."""
    import torch

    query = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.check_output(query, text=True, stderr=subprocess.DEVNULL).splitlines()
    except (OSError, subprocess.CalledProcessError):
        gpus = []
    about = {f"GPU {index}": line.strip() for index, line in enumerate(gpus)}
    about["CUDA of torch"] = torch.version.cuda or "none"
    return about | {package: installed_version(package) or "not installed" for package in _PACKAGES}


def study_figures(study: Path) -> tuple[list[Phase], list[TrainingFigures], dict[str, Any]]:
    """Every step of a study as a phase, its training runs, and the study's arguments.

    Raises UserError if the folder is not one of a study, or a file of it is missing or malformed.
    """
    records = {record["step"]: record for record in read_records(study / STEPS_FILE, unfinished=True)}
    phases, runs = [], []
    for name, record in records.items():
        seconds = record["seconds"] - record["services_seconds"]
        made = [Path(path) for path in record["files"]]
        evaluation = next((path for path in made if path.name == EVALUATION), None)
        tokens = (collected(evaluation)[0], _RESPONSES) if evaluation else ()
        phases.append(Phase(name, seconds, *tokens))
        runs += [training_figures(path.parent) for path in made if path.name == METRICS]
    arguments = recorded_arguments(study / STEPS_FILE)
    if arguments is None:
        raise UserError(f"{study} has no manifest of a study (steps.run.json)")
    return phases, runs, arguments


def page(
    phases: Sequence[Phase], runs: Sequence[TrainingFigures], arguments: Mapping[str, Any], memory: float | None
) -> str:
    """The report as markdown, from the steps, the training runs and the arguments of a study.

    `memory` is the most that all processes together had of the GPU's in use, in GiB; None: it was not sampled.
    """
    model = arguments.get("model") or "the pocket world's seed model"
    total = f"{sum(phase.seconds for phase in phases):.1f}"
    parts = [
        "# The smoke profile on a GPU",
        f"Written by `scripts/gpu_check.sh` (`--profile gpu-smoke`) with {model}, seed {arguments.get('seed', 0)}."
        " The sizes are those of `cobalt_verl/config/scale/gpu-smoke.yaml`; nothing is learned at them.",
        "## Machine and versions",
        _table(("what", "version"), environment().items()),
        "## Steps",
        "Wall time of each step, without the start of its services and with the judge. Tokens are those of responses.",
        _table(_PHASE_HEAD, [*map(_phase_row, phases), ("all", total, "", "")]),
    ]
    for run in runs:
        parts += [
            f"## Training run {run.name}",
            f"Sums over {run.steps} steps; the first step of a run, in which kernels are compiled, is left out.",
            _table(_PHASE_HEAD, map(_phase_row, run.phases)),
        ]
        if run.agreement:
            parts += [
                "The sampled tokens under vLLM and under the actor, the worst of all steps:",
                _table(("of the probabilities", "value"), [(n, f"{v:.3g}") for n, v in run.agreement.items()]),
            ]
        parts += ["Peaks of memory:", _table(("memory", "GiB"), [(n, f"{v:.1f}") for n, v in run.memory.items()])]
    if memory is not None:
        parts += [
            "## Memory of the GPU",
            f"At most {memory:.1f} GiB were in use by all processes together, by a sample every two seconds.",
        ]
    return "\n\n".join(parts) + "\n"


def disagreement(runs: Sequence[TrainingFigures]) -> str:
    """The sentence about the runs in which vLLM samples from another policy than the actor's; "" if there is none."""
    differences = {run.name: run.agreement.get("mean difference", 0.0) for run in runs}
    apart = [f"{name} ({value:.3g})" for name, value in differences.items() if not value <= LARGEST_DIFFERENCE]
    if not apart:
        return ""
    return (
        f"in {', '.join(apart)} the mean difference of vLLM's and the actor's probabilities is above"
        f" {LARGEST_DIFFERENCE}: vLLM does not sample from the policy that is trained (docs/training.md, on"
        " rollout_probs_diff)"
    )


def _phase_row(phase: Phase) -> tuple[str, ...]:
    tokens = "" if phase.tokens is None else f"{phase.tokens:,} ({phase.kind})"
    return phase.name, f"{phase.seconds:.1f}", tokens, "" if phase.rate is None else f"{phase.rate:,.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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

    Raises InfrastructureError: see `disagreement`; the page is written.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    phases, runs, settings = study_figures(arguments.study)
    memory = None if arguments.memory_file is None else peak_memory(arguments.memory_file)
    text = page(phases, runs, settings, memory)
    replace_text(arguments.output_file, text)
    Console().print(Markdown(text))
    if apart := disagreement(runs):
        raise InfrastructureError(apart)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
