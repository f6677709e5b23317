"""Cost of training: seconds of training runs and of other steps, tokens, tests and memory, from the runs' folders.

The time of a training run is the sum of its steps (`timing_s/step`), without its start. The first step, which warms up
the engine, counts as the median of the others. The time of any other step of a study is that of its command, without
the start of the services: of the last attempt alone, if it was stopped and went on. This leaves out what a run on a
cluster pays once and a miniature would pay out of all proportion.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from cobalt.episode.record import read_trajectories
from cobalt.report.curves import read_metrics
from cobalt.report.runs import EVALUATION
from cobalt.report.tables import Table
from cobalt.stage.errors import UserError, system_errors
from cobalt.stage.records import read_records
from cobalt.training.export import exported_step
from studies.methods import STEPS, Method, SeedFolders
from studies.plan import STEPS_FILE
from studies.seed_tables import seeds_named


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of training one policy, with the making of its data and without starts of services.

    Attributes:
        steps: Of training.
        prompts: That it was trained on, each with all its samples; in offline training, groups of responses.
        examples: Responses that it was trained on. A trajectory of an online method has one for each program.
        seconds: Of training steps, and of the commands that made their data.
        data_seconds: The part of making the data.
        tokens: Generated ones.
        tests: That programs were judged on.
        memory: GiB in use on the machine at the peak of training, all processes together.
    """

    steps: int
    prompts: int
    examples: int
    seconds: float
    data_seconds: float
    tokens: float
    tests: float
    memory: float


def training_seconds(run: Path, step: int) -> float:
    """The seconds of a training run's steps up to `step`, and with it.

    Raises UserError if the run has fewer steps, or no metrics.
    """
    metrics = (metrics for number, metrics in read_metrics(run) if 0 < number <= step)
    seconds = [of_step["timing_s/step"] for of_step in metrics if "timing_s/step" in of_step]
    if len(seconds) < step:
        raise UserError(f"{run} has {len(seconds)} steps, not {step}: train it to its end")
    if step > 1:
        seconds[0] = statistics.median(seconds[1:])
    return sum(seconds)


def command_seconds(study: Path, steps: Iterable[str]) -> float:
    """The seconds of the last successful commands of a study's steps, without the start of services.

    Raises UserError if a step has not run.
    """
    records = {record["step"]: record for record in read_records(study / STEPS_FILE)}
    try:
        return sum(float(records[step]["seconds"] - records[step]["services_seconds"]) for step in steps)
    except KeyError as error:
        raise UserError(f"step {error.args[0]} of {study} has not run") from None


def batch_of(run: Path) -> tuple[int, int]:
    """Prompts of a step of a training run (offline: groups), and samples of a prompt."""
    from omegaconf import OmegaConf

    with system_errors(f"the configuration of {run} cannot be read"):
        config = OmegaConf.load(run / "config.yaml")
    return int(config.data.train_batch_size), int(OmegaConf.select(config, "actor_rollout_ref.rollout.n", default=1))


def collected(evaluation: Path) -> tuple[int, int]:
    """Generated tokens and judged tests of a collection of trajectories."""
    tokens = tests = 0
    trajectories = (trajectory for group in read_trajectories(evaluation) for trajectory in group.trajectories)
    for turn in (turn for trajectory in trajectories for turn in trajectory.turns):
        tokens += turn.completion_tokens or 0
        tests += len(turn.public_result.verdicts) if turn.public_result else 0
        tests += len(turn.hidden_verdicts or ())
    return tokens, tests


def cost(at: SeedFolders, method: Method) -> Cost:
    """The cost of a method's policy of one seed. Raises UserError if a step of the study has not run."""
    preparing = command_seconds(at.folder, map(at.step, method.prepared))
    steps = prompts = examples = 0
    seconds, tokens, tests, memory = preparing, 0.0, 0.0, 0.0
    for slug, share in method.trained:
        length = exported_step(at.model(method)) if share is None else int(share * STEPS)
        run = at.home / f"{slug}_training"
        prompts_of_step, samples_of_prompt = batch_of(run)
        samples = prompts_of_step * samples_of_prompt
        steps += length
        prompts += length * prompts_of_step
        seconds += training_seconds(run, length)
        for metrics in (metrics for number, metrics in read_metrics(run) if 0 < number <= length):
            examples += round(samples * metrics.get("reward/turns", 1.0))
            tokens += samples * metrics.get("reward/generated_tokens", metrics["response_length/mean"])
            tests += samples * metrics["reward/judged_tests"]
            memory = max(memory, metrics["actor/perf/cpu_memory_used_gb"])
    for slug in (name.removesuffix("_collection") for name in method.prepared if name.endswith("_collection")):
        generated, judged = collected(at.home / f"{slug}_collection" / EVALUATION)
        tokens, tests = tokens + generated, tests + judged
    return Cost(steps, prompts, examples, seconds, preparing, tokens, tests, memory)


def cost_table(name: str, costs: Mapping[str, Mapping[int, Cost]]) -> Table:
    """Costs of a prompt with its samples and of a response: the mean over seeds, collection included.

    `costs` are those of each method, by seed.
    """
    seeds = sorted(next(iter(costs.values())))
    cells = []
    for method, by_seed in costs.items():
        every = [by_seed[seed] for seed in seeds]
        of_prompts = " / ".join(f"{one.seconds / one.prompts:.2f}" for one in every)
        of_examples = " / ".join(f"{1000 * one.seconds / one.examples:.0f}" for one in every)
        steps = "/".join(str(step) for step in dict.fromkeys(one.steps for one in every))
        _, prompts, examples, seconds, preparing, tokens, tests, memory = zip(*map(astuple, every), strict=True)
        answers, total, number = sum(examples), sum(seconds), len(every)
        cells.append(
            [
                *(method, steps, f"{sum(prompts) // number:,}", f"{answers // number:,}"),
                *(f"{total / number:,.0f}", f"{100 * sum(preparing) / total:.0f} %"),
                *(f"{total / sum(prompts):.2f}", of_prompts, f"{1000 * total / answers:.0f}", of_examples),
                *(f"{sum(tokens) / answers:.0f}", f"{sum(tests) / answers:.1f}", f"{max(memory):.1f}"),
            ]
        )
    return Table(
        name,
        "What training took, the mean over seeds, without starts of training runs and services. Data: collecting,"
        " judging and cutting trajectories, or making groups of judged programs, and writing the rows of training. A"
        " prompt counts with all its samples (offline: a group of responses); a response is one program that the policy"
        " is trained on, so that a trajectory of an online method has several. Memory is what the machine had in use at"
        " the peak of training, in GiB.",
        [
            *("", "steps", "prompts", "responses", "seconds", "of them data", "s a prompt", seeds_named(seeds)),
            *("ms a response", seeds_named(seeds), "tokens a response", "tests a response", "GiB"),
        ],
        cells,
        ("method", "seed", *(field.name for field in fields(Cost))),
        [(method, seed, *astuple(by_seed[seed])) for method, by_seed in costs.items() for seed in seeds],
    )
