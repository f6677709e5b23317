"""The steps that studies on the pocket world share: the world, evaluations, rows for veRL, training runs.

Each function returns a step with the command of one script; paths are relative to the checkout. `name` and `purpose`
are the step's, `flags` and `settings` further ones of its command, and None stands for the command's default.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.training.configuration import TrainingSettings, path_overrides
from studies.plan import Services, Step

_CHOICES = {
    "grpo_single_turn": ("problems", "single_turn", "grpo"),
    "grpo_multi_turn": ("partial_trajectories", "single_turn", "grpo"),
    "grpo_mt": ("episodes", "multi_turn", "grpo"),
    "verpo_mt": ("episodes", "multi_turn_until_solved", "verpo"),
}
"""The data, rollout and estimator that each of the scripts train_METHOD.sh chooses."""

_SAMPLING = ("--prompts", "pocket", "--enable_thinking", "--truncated_thinking", "drop", "--max_tokens", "512")


def flags_of(**values: object) -> tuple[str, ...]:
    """The words of flags on a command line, in their order: a flag alone for True, none for False and None."""
    given = {f"--{name}": value for name, value in values.items() if value is not None and value is not False}
    return tuple(word for flag, value in given.items() for word in ((flag,) if value is True else (flag, str(value))))


def world_model(world: Path) -> Path:
    """The seed model of a pocket world."""
    return world / "model"


def problems(world: Path, split: str) -> Path:
    """The problems of a split of a pocket world: "train", "dev" or "test"."""
    return world / "data" / f"{split}.jsonl"


def evaluation_file(run: Path) -> Path:
    """The evaluated trajectories in a folder of scripts/multi_turn.sh."""
    return run / "evaluation.jsonl"


def events_file(run: Path) -> Path:
    """The hacking events in a folder of scripts/multi_turn.sh with impossible feedback."""
    return run / "events.jsonl"


def validation_prompts(folder: Path) -> Path:
    """The contextual prompts that a training run is validated on, in the folder of its data."""
    return folder / "validation_prompts.jsonl"


def trained_model(run: Path) -> Path:
    """The policy that a training run leaves."""
    return run / "model"


def metrics_file(run: Path) -> Path:
    """The metrics of each step of a training run."""
    return run / "metrics.jsonl"


def row_files(folder: Path) -> tuple[Path, Path]:
    """The rows for veRL in a folder."""
    return folder / "train.parquet", folder / "validation.parquet"


def pocket_world(world: Path, seed: int, *flags: str) -> Step:
    """The world and its seed model, which a later step measures; `flags` are further ones of the command."""
    own = flags_of(output_dir=world, seed=seed, base_problems=0)
    return Step(
        "pocket_world",
        "Make the problems of the pocket world and train its seed model (base).",
        ("python", "-m", "cobalt.pocket", *own, *flags),
        files=(*(problems(world, split) for split in ("train", "dev", "test")), world_model(world)),
    )


def first_problems(name: str, purpose: str, count: int, source: Path, file: Path) -> Step:
    """The first `count` problems of a file, as a file of their own."""
    script = 'mkdir -p "$(dirname "$3")" && head -n "$1" "$2" >"$3"'
    copy = ("bash", "-c", script, "first_problems", str(count), str(source), str(file))
    return Step(name, purpose, copy, files=(file,), needs=(source,))


def trajectories(
    name: str,
    purpose: str,
    source: Path,
    run: Path,
    model: Path,
    seed: int,
    *,
    samples: int | None = None,
    turns: int | None = None,
    perturbed: bool = False,
    flags: tuple[str, ...] = (),
) -> Step:
    """Trajectories of a model on a file of problems, evaluated on hidden tests.

    `perturbed`: feedback comes from impossible public tests, and hacking events are extracted.
    """
    own = flags_of(seed=seed, perturbed=perturbed, turns=turns)
    number = () if samples is None else ("-n", str(samples))
    return Step(
        name,
        purpose,
        ("bash", "scripts/multi_turn.sh", str(source), str(run), *_SAMPLING, *own, *number, *flags),
        files=(evaluation_file(run), *((events_file(run),) if perturbed else ())),
        needs=(source, model),
        services=Services(model),
    )


def first_programs(
    name: str, purpose: str, source: Path, file: Path, model: Path, seed: int, *, samples: int, temperature: float = 0.6
) -> Step:
    """Judged first programs of a model on a file of problems.

    `temperature`: of sampling; above 0.6 without nucleus sampling.
    """
    files = flags_of(input_file=source, output_file=file)
    sampling = flags_of(temperature=f"{temperature:g}", top_p=1 if temperature > 0.6 else None)
    return Step(
        name,
        purpose,
        ("python", "run_single_turn_vllm.py", *files, *_SAMPLING, "--seed", str(seed), "-n", str(samples), *sampling),
        files=(file,),
        needs=(source, model),
        services=Services(model),
    )


def divergence(name: str, policy: str, start: Path, model: Path, groups: Path, result: Path) -> Step:
    """How far a policy has moved from another one, on judged programs of the other."""
    flags = flags_of(start=start, model=model, groups=groups, output_file=result)
    return Step(
        name,
        f"Estimate how far {policy} has moved from the seed model.",
        ("python", "-m", "studies.divergence", *flags),
        files=(result,),
        needs=(start, model, groups),
    )


def pass_at_k(name: str, result: Path, evaluation: Path) -> Step:
    """Pass@1, pass@10 and the number of different programs of a single-turn result."""
    return Step(
        name,
        "Estimate pass@k, and count different programs.",
        ("python", "eval_single_turn.py", *flags_of(input_file=result, output_file=evaluation)),
        files=(evaluation,),
        needs=(result,),
    )


def judged_groups(
    name: str, results: Sequence[Path], folder: Path, model: Path, seed: int, *flags: str, validation: bool = True
) -> Step:
    """Groups for offline training from judged results.

    `model`: the policy to train, by whose tokens responses are measured.
    `validation`: whether some problems are left out of the training groups, for validation.
    """
    script = ("python", "preproc/preproc_judged.py", "--input_files", *map(str, results))
    # Programs of this world are a few lines long, so that those with different mistakes are near duplicates.
    rules = {"output_dir": folder, "prompts": "pocket", "near_duplicates": 1.1, "max_tokens": 1024}
    own = flags_of(**rules, model_name=model, seed=seed)
    return Step(
        name,
        "Put judged programs into groups for offline training.",
        (*script, *own, *flags, *flags_of(validation_share=None if validation else 0)),
        files=(folder / "train.jsonl", *((folder / "validation.jsonl",) if validation else ())),
        needs=(*results, model),
    )


def offline_training(
    name: str,
    purpose: str,
    estimator: str,
    data: Path,
    validation: Path,
    model: Path,
    run: Path,
    seed: int,
    *settings: str,
    steps: int,
    epochs: int | None = None,
) -> Step:
    """A run of offline training, validated before it, at every quarter of `steps`, and at its end.

    `steps`: of training; with `epochs`, four times the steps between two validations.
    `epochs`: passes over the data; None: as many as the steps take.
    """
    own = flags_of(data_dir=data, model=model, output_dir=run, estimator=estimator)
    length = [f"trainer.total_epochs={steps if epochs is None else epochs}"]
    if epochs is None:
        length.append(f"trainer.total_training_steps={steps}")
    return Step(
        name,
        purpose,
        (
            *("bash", "scripts/train_offline_rl.sh", *own, f"data.seed={seed}"),
            *(*path_overrides({"data.val_files": validation}), *length, "trainer.save_freq=-1"),
            *(f"trainer.test_freq={max(1, steps // 4)}", *settings),
        ),
        files=(trained_model(run), metrics_file(run)),
        needs=(data / "train.jsonl", validation, model),
    )


def problem_rows(
    name: str,
    world: Path,
    dev: Path,
    folder: Path,
    *flags: str,
    episodes: bool = False,
    model: Path | None = None,
) -> Step:
    """Rows of the world's training problems, validated on those of `dev`.

    They are for single-turn GRPO or, with `episodes`, for online multi-turn training.

    `episodes`: whether rollouts of several turns begin with the rows.
    `model`: the policy to train; None: the world's seed model.
    """
    train, model = problems(world, "train"), model or world_model(world)
    own = flags_of(train_file=train, validation_file=dev, local_dir=folder, model_name=model)
    own += flags_of(prompts="pocket", data_source="pocket")
    rules = ("--episodes", "--enable_thinking", "--truncated_thinking", "drop") if episodes else ()
    return Step(
        name,
        f"Write the rows of {'online multi-turn training' if episodes else 'single-turn GRPO'} for veRL.",
        ("python", "preproc/verl_preproc_single_turn.py", *own, *rules, *flags),
        files=row_files(folder),
        needs=(train, dev, model),
    )


def partial_trajectory_rows(name: str, train_run: Path, dev_run: Path, folder: Path, model: Path) -> Step:
    """Rows for GRPO on the partial trajectories of `train_run`, validated on those of `dev_run`."""
    return Step(
        name,
        "Select trajectories, cut them into contextual prompts and write these as rows for veRL.",
        ("bash", "scripts/cut_trajectories.sh", str(train_run), str(dev_run), str(folder), str(model)),
        files=(folder / "prompts.jsonl", validation_prompts(folder), *row_files(folder)),
        needs=(evaluation_file(train_run), evaluation_file(dev_run), model),
    )


def contextual_prompts(
    name: str,
    run: Path,
    file: Path,
    model: Path,
    *,
    is_test: bool = False,
    perturbed: Path | None = None,
    perturbed_ratio: float = 1.0,
    flags: tuple[str, ...] = (),
) -> Step:
    """Contextual prompts from the trajectories of a run.

    `model`: the policy to train, by whose tokens prompts are measured.
    `is_test`: one trajectory of each problem, for validation.
    `perturbed`: the problems with impossible tests; copies of prompts with impossible feedback are then added.
    `perturbed_ratio`: with `perturbed`, copies for each prompt, 0 to 1.
    """
    own = flags_of(input_file=evaluation_file(run), output_file=file, model_name=model, prompts="pocket")
    copies = flags_of(perturbed_ratio=f"{perturbed_ratio:g}", perturbed_file=perturbed) if perturbed else ()
    return Step(
        name,
        "Cut the trajectories into contextual prompts"
        + (", and add copies with impossible feedback." if perturbed else "."),
        ("python", "preproc/process_multi_turn_taco.py", *own, *flags_of(is_test=is_test), *copies, *flags),
        files=(file,),
        needs=(evaluation_file(run), model, *((perturbed,) if perturbed else ())),
    )


def multi_turn_rows(name: str, prompts: Path, validation: Path, folder: Path, model: Path, *flags: str) -> Step:
    """Rows for GRPO on contextual prompts, validated on those of `validation`; `flags` are further ones."""
    own = flags_of(train_file=prompts, validation_file=validation, local_dir=folder, model_name=model)
    return Step(
        name,
        "Write the prompts as rows for veRL.",
        ("python", "preproc/verl_preproc_multi_turn.py", *own, "--data_source", "pocket", *flags),
        files=row_files(folder),
        needs=(prompts, validation, model),
    )


def training(
    name: str,
    purpose: str,
    method: str,
    data: Path,
    model: Path,
    run: Path,
    steps: int | None,
    seed: int,
    *,
    save_every: int | None = None,
    validate_every: int | None = 10,
    settings: tuple[str, ...] = (),
    scale: str = "pocket",
) -> Step:
    """A training run.

    `method`: which of the scripts trains (scripts/train_METHOD.sh), such as "grpo_single_turn".
    `steps`: None: as many as the epochs of the scale make.
    `save_every`: steps between two checkpoints; None: only the last one.
    `validate_every`: steps between two validations, the first of them before training; None: no validation.
    """
    script = ("bash", f"scripts/train_{method}.sh", "--data_dir", str(data), "--model", str(model))
    length = () if steps is None else (f"trainer.total_training_steps={steps}", f"trainer.total_epochs={steps}")
    saved = f"trainer.save_freq={save_every or steps}"
    validated = [f"trainer.test_freq={validate_every or -1}"]
    if validate_every is None:
        validated.append("trainer.val_before_train=false")
    overrides = (f"data.seed={seed}", *length, saved, *validated, *settings)
    choices: dict[str, Any] = dict(zip(("data", "rollout", "estimator"), _CHOICES[method], strict=True))
    return Step(
        name,
        purpose,
        (*script, "--output_dir", str(run), "--profile", scale, *overrides),
        files=(trained_model(run), metrics_file(run)),
        needs=(*row_files(data), model),
        training=TrainingSettings(data, str(model), run, overrides, scale=scale, **choices),
    )


def checkpoint(name: str, run: Path, step: int, model: Path) -> Step:
    """The policy of a training run after a number of steps, as a folder of its own."""
    return Step(
        name,
        f"Export the policy after {step} steps.",
        ("python", "-m", "cobalt.training.export", *flags_of(run_dir=run, step=step, output_dir=model)),
        files=(model,),
        needs=(metrics_file(run),),
    )


def report(
    name: str, purpose: str, runs: Mapping[str, Path], folder: Path, events: Mapping[str, Path] | None = None
) -> Step:
    """Tables and plots of evaluated runs, by their names; `events` are files with the hacking events of the runs."""
    named = [f"{run}={path}" for run, path in runs.items()]
    hacking = [f"{run}={path}" for run, path in (events or {}).items()]
    return Step(
        name,
        purpose,
        ("python", "-m", "cobalt.report", *named, *(("--hacking", *hacking) if hacking else ()), "-o", str(folder)),
        files=(folder / "report.md",),
        needs=(*map(evaluation_file, runs.values()), *(events or {}).values()),
        shown=True,
    )


def training_plot(name: str, runs: Mapping[str, Path], file: Path) -> Step:
    """Reward and validation curves of training runs, by their names."""
    named = [f"{run}={path}" for run, path in runs.items()]
    return Step(
        name,
        "Draw the curves of the training runs.",
        ("python", "-m", "cobalt.report.training", *named, "-o", str(file)),
        files=(file,),
        needs=tuple(metrics_file(path) for path in runs.values()),
    )


def viewer(name: str, run: Path, file: Path) -> Step:
    """Every trajectory of a run in one HTML file."""
    return Step(
        name,
        "Make a page that shows every trajectory.",
        ("python", "-m", "cobalt.report.viewer", str(run), "-o", str(file)),
        files=(file,),
        needs=(evaluation_file(run),),
    )
