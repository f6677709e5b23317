"""Tokens a second of a training step and the share of each of its phases, against bare veRL of the same size.

    python benchmarks/step.py --data_dir ROWS --model MODEL --output_dir runs/step [--scale paper] [KEY=VALUE ...]

The sides have the same model, rows, order of prompts, batch, lengths, number of samples and settings of veRL:

- bare veRL: `verl.trainer.main_ppo` with its own trainer, agent loop, replay buffer, loss and engine, and a reward that
  looks at the text and runs nothing;
- bare veRL with quick parts: the same with a buffer that looks for finished samples as often as this project's does,
  and on a CPU with this project's engine, which computes a prompt that samples share once;
- bare veRL with quick parts and its own judge: the second side, with veRL's reward for code, which runs the tests
  without a sandbox (`verl.utils.reward_score.prime_code`);
- this project with the reward that runs nothing: `python -m cobalt.training`, with metrics, seeds and a fixed order,
  and without the judge;
- this project: with the judge, too.

What this project adds to a step is its difference to the third side, which judges programs, too. The difference to the
second side counts all judging as added, and the fourth side says how much of that is the judge. Bare veRL keeps its own
agent loop and its processes for rewards; what this project saves there (whole responses as tokens, rewards without a
process in between) is in these differences. What the engine for CPUs saves is the difference of the
first two. On a CPU all sides need this project's platform for veRL (`cobalt_verl.cpu`), without which veRL does not run
there, and run vLLM in one process (`cobalt.engine.vllm_executor`).

A fifth side, which only `--sides` asks for, is this project on a CPU with veRL's own engine. That pads, and computes
the prompt of every sample. This says what the sharing of prompts saves of a step:

    python benchmarks/step.py --data_dir ROWS --model MODEL --output_dir runs/step --sides apart ours

The learning rate is next to nothing, so that all sides generate with one policy. A step lasts from one entry of the
run's log to the next, so that metrics and logging count. Rewards are computed while other samples are generated; what
counts as their phase is the time from the last response to the last verdict. The start-up is the time from the command
to the first step: processes, imports, engine and judge. Run it while the machine does nothing else. Where the judge
shares its cores with the engine, as on two cores, it slows generation down as well.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Literal

import tyro
from timed import seconds

from cobalt.stage.cli import run_script
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.training.configuration import TrainingSettings, compose, process_environment
from cobalt.training.machine import trains_on_cpu

BARE, QUICK, PLAIN, OURS = "bare veRL", "bare veRL, quick parts", "this project, no judge", "this project"
JUDGED = "bare veRL, quick parts and its own judge"
APART = "this project, prompts apart"

Side = Literal["bare", "quick", "judged", "no_judge", "ours", "apart"]
NAMES: dict[Side, str] = {
    "bare": BARE,
    "quick": QUICK,
    "judged": JUDGED,
    "no_judge": PLAIN,
    "ours": OURS,
    "apart": APART,
}
"""The sides as flags and in the table."""

PHASES = {
    "generate": "gen",
    "reward": "reward_wait",
    "old log-probs": "old_log_prob",
    "reference": "ref",
    "advantages": "adv",
    "update": "update_actor",
    "weights to the engine": "update_weights",
}
"""The phases of a step and veRL's names for them; `reward_wait`, a part of `gen`, is this project's."""

_WHOLE_STEP = "timing_s/step"
_WARM_UP = 2
_LOGICAL_CPUS = 64
_OBJECT_STORE = 2**30
_ACTOR, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
_OWN_ENGINE = ("actor_rollout_ref.model.external_lib=null", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16")
_OWN_ENGINE_VARIABLES = {"VERL_ENGINE_DEVICE": "cuda"}
"""VeRL's own engine on a CPU, where it is registered for other devices alone."""

_PLAIN_VERL = Path(__file__).resolve().with_name("plain_verl.py")
_PLAIN_REWARD = f"reward.custom_reward_function.path='{_PLAIN_VERL}'"
_OWN_JUDGE = "reward.custom_reward_function.name=judged_score"
_SAMPLER = "trainer.v1.sampler.custom_sampler"


@dataclass(frozen=True)
class Arguments:
    """Measure a training step of this project and of bare veRL."""

    data_dir: Path
    """Rows of veRL: train.parquet and validation.parquet."""
    model: str
    """The policy."""
    output_dir: Path
    """Folder for the runs; replaced."""
    overrides: Annotated[list[str], tyro.conf.Positional]
    """Settings of veRL as key=value, for all sides."""
    data: str = "problems"
    """Kind of the rows: problems or partial_trajectories."""
    scale: Annotated[str, tyro.conf.arg(aliases=["--profile"])] = "pocket"
    """Scale of the training run, as for `python -m cobalt.training`."""
    steps: int = 8
    """Steps of each run; the first two warm up and do not count."""
    rounds: int = 1
    """Runs of each side, in turns."""
    sides: tuple[Side, ...] = ("bare", "quick", "judged", "no_judge", "ours")
    """Sides to measure; apart: this project with veRL's own engine, on a CPU alone."""


def settings_of(arguments: Arguments, run: Path, further: tuple[str, ...] = ()) -> TrainingSettings:
    """The settings of one run.

    Args:
        arguments: Of this benchmark.
        run: The run's folder.
        further: Overrides of one side.
    """
    same = (
        f"trainer.total_training_steps={arguments.steps}",
        "trainer.total_epochs=100000",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        "trainer.logger=[console,tensorboard]",
        "actor_rollout_ref.actor.optim.lr=1e-12",
    )
    return TrainingSettings(
        arguments.data_dir,
        arguments.model,
        run,
        data=arguments.data,
        scale=arguments.scale,
        overrides=(*same, *arguments.overrides, *further),
    )


def bare_overrides(*, quick: bool, on_cpu: bool, judged: bool = False) -> tuple[str, ...]:
    """Overrides that take this project's parts out of its configuration, and leave veRL's own.

    Args:
        quick: Leave the buffer's short sleep and the engine for CPUs in.
        on_cpu: Whether there is no GPU.
        judged: Rewards are those of veRL's own judge.
    """
    return (
        "actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path=null",
        "reward.num_workers=${actor_rollout_ref.rollout.agent.num_workers}",
        _PLAIN_REWARD,
        *((_OWN_JUDGE,) if judged else ()),
        *((f"{_SAMPLER}.path='{_PLAIN_VERL}'", f"{_SAMPLER}.name=QuickReplayBuffer") if quick else ()),
        *(() if quick else (f"{_SAMPLER}.path=null", f"{_SAMPLER}.name=null")),
        *(_OWN_ENGINE if on_cpu and not quick else ()),
    )


def train_ours(arguments: Arguments, run: Path, *, judge: bool = True, apart: bool = False) -> None:
    """One run of this project, with or without the judge, or with veRL's own engine on a CPU."""
    run.mkdir(parents=True)
    settings = settings_of(arguments, run, (*(() if judge else (_PLAIN_REWARD,)), *(_OWN_ENGINE if apart else ())))
    flags = [part for key, value in settings.choices.items() for part in (f"--{key}", value)]
    variables = _OWN_ENGINE_VARIABLES if apart else {}
    flags += ["--data_dir", str(settings.data_dir), "--model", settings.model, "--output_dir", str(run)]
    seconds([sys.executable, "-m", "cobalt.training", *flags, *settings.overrides], variables, run / "command.log")


def train_bare(arguments: Arguments, run: Path, *, quick: bool, judged: bool = False) -> None:
    """One run of bare veRL, on a Ray like that of this project's runs."""
    from omegaconf import OmegaConf

    from cobalt.training.private_ray import private_ray

    run.mkdir(parents=True)
    on_cpu = trains_on_cpu(compose(settings_of(arguments, run)))
    config = compose(settings_of(arguments, run, bare_overrides(quick=quick, on_cpu=on_cpu, judged=judged)))
    variables = process_environment(run, on_cpu=on_cpu)
    if on_cpu:
        variables |= {} if quick else _OWN_ENGINE_VARIABLES
    else:
        del variables["VERL_USE_EXTERNAL_MODULES"]
    config.trainer.resume_mode = "disable"
    config.ray_kwargs.ray_init.num_cpus = None
    OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", variables, force_add=True)
    OmegaConf.save(config, run / "config.yaml")
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-path", str(run.resolve())]
    command += ["--config-name", "config", f"hydra.run.dir='{run.resolve()}'", "hydra.output_subdir=null"]
    with private_ray(
        num_cpus=max(_LOGICAL_CPUS, os.cpu_count() or 1),
        num_gpus=1 if on_cpu else None,
        object_store_memory=_OBJECT_STORE,
    ) as addresses:
        seconds(command, variables | addresses, run / "train.log")


def steps_of(run: Path) -> list[dict[str, float]]:
    """Seconds of each phase, `step` (the whole period) and `tokens` of each step after the warm-up.

    Raises:
        InfrastructureError: the run logged no step after the warm-up.
    """
    by_step = _logged(run)
    rows = []
    for number in sorted(by_step)[_WARM_UP:]:
        metrics, before = by_step[number], by_step.get(number - 1)
        if before is None:
            continue
        row = {phase: metrics.get(f"timing_s/{name}", 0.0) for phase, name in PHASES.items()}
        row["generate"] -= row["reward"]
        row["step"] = metrics["logged"] - before["logged"]
        row["rest"] = row["step"] - sum(row[phase] for phase in PHASES)
        row["tokens"] = metrics["perf/total_num_tokens"]
        rows.append(row)
    if not rows:
        raise InfrastructureError(f"{run} has no step after {_WARM_UP} that warm up: see its logs")
    return rows


def first_step_began(run: Path) -> float:
    """Time at which the first step of a run began, in seconds since the epoch.

    Raises:
        InfrastructureError: the run logged no step.
    """
    by_step = _logged(run)
    if not by_step:
        raise InfrastructureError(f"{run} has no step: see its logs")
    first = by_step[min(by_step)]
    return first["logged"] - first[_WHOLE_STEP]


def _logged(run: Path) -> dict[int, dict[str, float]]:
    """By step: veRL's metrics that the table needs, and `logged`, when they were written (seconds since the epoch)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    logged = set(events.Tags()["scalars"])
    by_step: dict[int, dict[str, float]] = {}
    for name in ("perf/total_num_tokens", _WHOLE_STEP, *(f"timing_s/{phase}" for phase in PHASES.values())):
        for event in events.Scalars(name) if name in logged else ():
            by_step.setdefault(event.step, {"logged": event.wall_time})[name] = event.value
    return by_step


def table(rows: dict[str, list[dict[str, float]]], starts: dict[str, list[float]]) -> str:
    """Seconds and shares of each phase by side, tokens a second, start-up, and what sides cost, as Markdown.

    Args:
        rows: The steps of each side (`steps_of`).
        starts: The start-up of each run of each side, in seconds.
    """
    means = {side: {key: mean(row[key] for row in steps) for key in steps[0]} for side, steps in rows.items()}
    speeds = {side: values["tokens"] / values["step"] for side, values in means.items()}
    lines = [_line("a step", rows), _line("---", ["---"] * len(rows))]
    for phase in (*PHASES, "rest"):
        cells = (f"{row[phase]:.2f} s, {100 * row[phase] / row['step']:.1f} %" for row in means.values())
        lines.append(_line(phase, cells))
    lines.append(_line("whole step", (f"{row['step']:.2f} s" for row in means.values())))
    medians = (f"{median(row['step'] for row in steps):.2f} s" for steps in rows.values())
    lines.append(_line("whole step, median", medians))
    lines.append(_line("tokens", (f"{row['tokens']:,.0f}" for row in means.values())))
    lines.append(_line("tokens a second", (f"{speed:,.0f}" for speed in speeds.values())))
    lines.append(_line("start-up", (f"{mean(starts[side]):.0f} s" for side in rows)))
    if OURS not in rows:
        return "\n".join(lines)
    lines.append("")
    for side in (BARE, APART):
        if side in rows:
            lines.append(f"Tokens a second, {OURS} to {side}: {speeds[OURS] / speeds[side]:.2f}.")
    added = {side: 100 * (1 - speeds[OURS] / speeds[side]) for side in (JUDGED, QUICK, PLAIN) if side in rows}
    if JUDGED in added:
        lines.append(f"What {OURS} adds to {JUDGED}: {added[JUDGED]:.1f} % of its step for the same tokens.")
    if QUICK in added and PLAIN in added:
        judging = f"its judge {added[PLAIN]:.1f} %"
        lines.append(f"What it adds to {QUICK}: {added[QUICK]:.1f} % of its step for the same tokens, {judging}.")
    return "\n".join(lines)


def _line(name: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"


def main(arguments: Arguments) -> int:
    """Run the sides in turns and print the table."""
    if arguments.steps <= _WARM_UP or arguments.rounds < 1:
        raise UserError(f"--steps must be above {_WARM_UP}, --rounds 1 or more")
    if not arguments.sides or len(set(arguments.sides)) < len(arguments.sides):
        raise UserError("--sides: give at least one side, and each once")
    on_cpu = trains_on_cpu(compose(settings_of(arguments, arguments.output_dir)))
    if "apart" in arguments.sides and not on_cpu:
        raise UserError("--sides apart: with GPUs the engine is veRL's own anyway")
    runs: dict[Side, Callable[[Path], None]] = {
        "bare": lambda run: train_bare(arguments, run, quick=False),
        "quick": lambda run: train_bare(arguments, run, quick=True),
        "judged": lambda run: train_bare(arguments, run, quick=True, judged=True),
        "no_judge": lambda run: train_ours(arguments, run, judge=False),
        "ours": lambda run: train_ours(arguments, run),
        "apart": lambda run: train_ours(arguments, run, apart=True),
    }
    shutil.rmtree(arguments.output_dir, ignore_errors=True)
    rows: dict[str, list[dict[str, float]]] = {NAMES[side]: [] for side in arguments.sides}
    starts: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(arguments.rounds):
        for position, side in enumerate(arguments.sides):
            run = arguments.output_dir / f"{number}_{position}"
            launched = time.time()
            runs[side](run)
            rows[NAMES[side]] += steps_of(run)
            starts[NAMES[side]].append(first_step_began(run) - launched)
    text = table(rows, starts)
    (arguments.output_dir / "step.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
