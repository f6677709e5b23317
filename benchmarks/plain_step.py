"""The phases of a training step on a CPU, against plain `transformers` on as many tokens.

    python benchmarks/plain_step.py runs/real_model/ft_training

The run's own metrics say how long each phase took, as the median over its steps without the first one. Then a plain
model in float32 with all cores computes what a step asks for: log-probs without gradients, as the reference does, and
loss and gradients of all its samples, as the update does. Samples have the run's mean lengths and random tokens, each
with its own prompt, in the run's micro-batches, so that nothing is padded. Below 1, this project is faster: it computes
a prompt that samples share once. It also prints the floating-point operations a second of the plain side, by 2 and 6
operations for each parameter and token, for comparison with what the machine can do in one large product of matrices.
Run it while the machine does nothing else.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import tyro
from omegaconf import OmegaConf
from step import PHASES
from transformers import AutoModelForCausalLM

from cobalt.report.curves import read_metrics
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError


@dataclass(frozen=True)
class Arguments:
    """Compare the phases of a training run on a CPU with plain transformers."""

    run: tyro.conf.Positional[Path]
    """Folder of a training run with two steps or more."""
    share: float = 1.0
    """Share of a step's micro-batches that the plain side computes; the seconds are those of the whole step."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    steps = [metrics for number, metrics in read_metrics(arguments.run) if number > 1]
    if not steps:
        raise UserError(f"{arguments.run} has fewer than two steps")
    config = OmegaConf.load(arguments.run / "config.yaml")
    took = {phase: median(step.get(f"timing_s/{name}", 0.0) for step in steps) for phase, name in PHASES.items()}
    prompt, response = (round(median(step[f"{part}_length/mean"] for step in steps)) for part in ("prompt", "response"))
    samples = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    micro = config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
    batches = math.ceil(samples / micro)
    computed = max(1, round(batches * arguments.share))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(config.actor_rollout_ref.model.path, dtype=torch.float32)
    tokens = torch.randint(model.config.vocab_size, (micro, prompt + response))

    def log_probs() -> torch.Tensor:
        logits = model(tokens).logits[:, prompt - 1 : -1]
        return torch.log_softmax(logits, -1).gather(-1, tokens[:, prompt:, None])

    def forward() -> None:
        with torch.no_grad():
            log_probs()

    def update() -> None:
        log_probs().mean().backward()

    print(f"{samples} samples of {prompt} + {response} tokens, {len(steps)} steps of {arguments.run}")
    print(" ".join(f"{phase} {value:.1f} s;" for phase, value in took.items()))
    size = sum(parameter.numel() for parameter in model.parameters())
    for phase, work, operations in (("reference", forward, 2), ("update", update, 6)):
        plain = _seconds(work, computed) * batches / computed
        speed = operations * size * samples * (prompt + response) / plain / 1e9
        ratio = took[phase] / plain
        print(f"{phase}: {took[phase]:.1f} s, plain transformers {plain:.1f} s ({speed:.0f} GFLOP/s): {ratio:.2f}")
    side = 4096
    left, right = torch.rand(side, side), torch.rand(side, side)
    print(f"one product of matrices: {2 * side**3 / _seconds(lambda: torch.mm(left, right), 3) * 3 / 1e9:.0f} GFLOP/s")
    return 0


def _seconds(work: Callable[[], object], times: int) -> float:
    work()
    began = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - began


if __name__ == "__main__":
    run_script(Arguments, main)
