"""A row of the paper's table for Qwen3-8B, on one node of four GPUs (`python -m studies.paper_row`).

FT is base after single-turn GRPO on TACO-Cobalt. Cobalt trains base, and FT-Cobalt trains FT, on FT's trajectories. The
row and base are measured on LiveCodeBench over eight rounds of feedback. This has not been run: docs/reproduce.md has
the same commands one by one. Under Slurm a job runs this command, and another job goes on where it stopped.
"""

import shlex
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from cobalt.stage.cli import run_script
from studies import pocket
from studies.dry_run import dry_run
from studies.flags import StudyFlags
from studies.plan import Services, Step, Study

SAMPLING = ("--max_tokens", "6144", "--enable_thinking")
ATTEMPTS_BY = "Qwen/Qwen2.5-Coder-7B-Instruct"
TRAIN, DEV, TEST = 5853, 250, 175
"""Problems of TACO-Cobalt and of LiveCodeBench's sixth file, by their cards."""
_SAMPLES, _TURNS, _EPOCHS_FT, _EPOCHS_COBALT = 16, 8, 4, 2
_HOURS = 16.9 * 4 / 3600
"""GPU-hours of a training example, which must be a prompt with its 16 responses (docs/RESULTS.md), as the paper gives
them: seconds on four GPUs. Sampling alone takes less."""


@dataclass(frozen=True)
class Arguments(StudyFlags):
    """Make a row of the paper's table: data, FT, FT's trajectories, Cobalt, evaluation. Needs four GPUs of 80 GB.

    Stop it whenever you like: the same command goes on where it stopped.
    """

    row: Literal["FT", "Cobalt", "FT-Cobalt"] = "Cobalt"
    """The row of the table."""
    model: str = "Qwen/Qwen3-8B"
    """Base: a folder, or a name of the hub, which is then downloaded."""
    data: Path | None = None
    """Folder with train.jsonl and dev.jsonl of TACO-Cobalt and lcb_v6.jsonl; by default they are made."""
    dry_run: bool = False
    """Print commands, memory, disk and GPU-hours, check the configurations without a GPU, and stop."""


def _data_steps(folder: Path, data: Path, seed: int) -> tuple[Step, ...]:
    """TACO-Cobalt made again, with the four easiest tests public by 16 attempts of another model, and LiveCodeBench."""
    raw, model, test = folder / "taco", folder / "attempts_model", data / "lcb_v6.jsonl"
    splits, attempts = ("train", "dev"), {split: folder / f"attempts_{split}.jsonl" for split in ("train", "dev")}
    online = ("env", "HF_HUB_OFFLINE=0", "python")
    joined, files = folder / "attempts.jsonl", tuple(data / f"{split}.jsonl" for split in splits)
    return (
        pocket.download(ATTEMPTS_BY, model),
        Step(
            "taco",
            "Make the problems, without public tests by attempts.",
            (*online, "preproc/preproc_taco.py", "-o", str(raw)),
            files=tuple(raw / f"{split}.jsonl" for split in splits),
        ),
        *(
            pocket.first_programs(
                *(f"attempts_{split}", f"Judge attempts at the problems ({split}).", raw / f"{split}.jsonl"),
                *(attempts[split], model, seed),
                samples=_SAMPLES,
                sampling=(),
                engine=("tensor_parallel_size=4",),
            )
            for split in splits
        ),
        Step(
            "attempts",
            "Join the attempts.",
            ("bash", "-c", 'cat "$1" "$2" >"$3"', "attempts", *map(str, attempts.values()), str(joined)),
            files=(joined,),
            needs=tuple(attempts.values()),
        ),
        Step(
            "problems",
            "Make the problems with the easiest tests public.",
            (*online, "preproc/preproc_taco.py", "-o", str(data), "--attempts_file", str(joined)),
            files=files,
            needs=(joined,),
        ),
        Step(
            "livecodebench",
            "Make the problems of the evaluation.",
            (*online, "preproc/preproc_lcb_test6.py", "--paper_mode", "-o", str(test)),
            files=(test,),
        ),
    )


def _steps(folder: Path, data: Path, base: Path, row: str, seed: int) -> tuple[Step, ...]:
    """The steps after the data and the base model."""
    train, dev, test = (data / f"{name}.jsonl" for name in ("train", "dev", "lcb_v6"))
    runs = {"FT": folder / "ft_training", row: folder / ("ft_training" if row == "FT" else "cobalt_training")}
    ft = pocket.trained_model(runs["FT"])
    prompts, validation, rows = folder / "prompts.jsonl", folder / "validation_prompts.jsonl", folder / "ft_rows"

    def write(name: str, purpose: str, source: Path, model: Path, turns: int) -> Step:
        step = pocket.trajectories(
            name, purpose, source, folder / name, model, seed, turns=turns, samples=_SAMPLES, sampling=SAMPLING
        )
        return replace(step, services=Services(model, ("tensor_parallel_size=4",), ("paper=true",)))

    def train_by(name: str, method: str, rows: Path, model: Path) -> Step:
        purpose = f"Train {name} by GRPO, with the paper's number of epochs."
        step = pocket.training(
            *(f"{name}_training", purpose, method, rows, model, folder / f"{name}_training", None, seed),
            save_every=10,
            validate_every=None,
            scale="paper",
        )
        return replace(step, command=("env", "COBALT_JUDGE_PAPER=true", *step.command))

    evaluate = partial(write, source=test, turns=_TURNS)
    measured = {"base": folder / "base", row: folder / "row"}
    ft_rows = Step(
        "ft_rows",
        "Write the rows of single-turn GRPO for veRL.",
        (
            *("python", "preproc/verl_preproc_single_turn.py", "--train_file", str(train), "--validation_file"),
            *(str(dev), "--local_dir", str(rows), "--model_name", str(base)),
        ),
        files=pocket.row_files(rows),
        needs=(train, dev, base),
    )
    cobalt = (
        write("ft_train", "Collect FT's trajectories.", train, ft, 2),
        write("ft_dev", "Collect FT's trajectories for validation.", dev, ft, 2),
        pocket.contextual_prompts("prompts", folder / "ft_train", prompts, ft, prompts="paper"),
        pocket.contextual_prompts(
            "validation_prompts", folder / "ft_dev", validation, ft, is_test=True, prompts="paper"
        ),
        pocket.multi_turn_rows("cobalt_rows", prompts, validation, folder / "cobalt_rows", ft, source="taco_cobalt"),
        train_by("cobalt", "grpo_multi_turn", folder / "cobalt_rows", base if row == "Cobalt" else ft),
    )
    return (
        evaluate("base", "Measure base.", model=base),
        ft_rows,
        train_by("ft", "grpo_single_turn", rows, base),
        *(() if row == "FT" else cobalt),
        evaluate("row", f"Measure {row}.", model=pocket.trained_model(runs[row])),
        pocket.report("report", "Compare base and the row.", measured, folder / "report"),
    )


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder = arguments.output_dir or Path("runs") / f"paper_{arguments.row.lower()}"
    here = Path(arguments.model).is_dir()
    base, data = Path(arguments.model) if here else folder / "base_model", arguments.data or folder / "data"
    steps = [
        *([] if here else [pocket.download(arguments.model, base)]),
        *([] if arguments.data else _data_steps(folder, data, arguments.seed)),
        *_steps(folder, data, base, arguments.row, arguments.seed),
    ]
    given = [*([base] if here else [])]
    given += [data / f"{name}.jsonl" for name in ("train", "dev", "lcb_v6")] if arguments.data else []
    again = ["python", "-m", "studies.paper_row", str(folder), str(arguments.seed), "--row", arguments.row]
    again += ["--model", arguments.model, *(["--data", str(data)] if arguments.data else [])]
    return Study(
        "paper row",
        folder,
        {"row": arguments.row, "model": arguments.model, "seed": arguments.seed, "data": str(data)},
        tuple(steps),
        shlex.join(again),
        f"done: {folder / 'report' / 'report.md'}",
        given=tuple(given),
        given_by="the commands of docs/reproduce.md that make it",
    )


def gpu_hours(planned: Study, data: Path) -> dict[str, float]:
    """GPU-hours of each step that needs GPUs, by the paper's figure for a training example; guesses from above.

    Files that are there are counted; others have the published numbers of problems. The contextual prompts, whose
    number the paper does not give, are taken for as many as the problems until they are made.
    """

    def count(file: Path, otherwise: int) -> int:
        path = planned.root / file
        return sum(1 for _ in path.open("rb")) if path.exists() else otherwise

    train, dev = count(data / "train.jsonl", TRAIN), count(data / "dev.jsonl", DEV)
    test, prompts = count(data / "lcb_v6.jsonl", TEST), count(planned.folder / "prompts.jsonl", train)
    groups = {
        "attempts_train": train,
        "attempts_dev": dev,
        "ft_training": _EPOCHS_FT * train,
        "ft_train": 3 * train,
        "ft_dev": 3 * dev,
        "cobalt_training": _EPOCHS_COBALT * prompts,
        "base": (1 + _TURNS) * test,
        "row": (1 + _TURNS) * test,
    }
    return {step.name: groups[step.name] * _HOURS for step in planned.steps if step.name in groups}


def main(arguments: Arguments) -> int:
    """List the study, or print what it needs, and run it; returns the exit code."""
    planned = study(arguments)
    if not arguments.list_steps:
        dry_run(planned, sys.stdout.write, arguments.model)
        hours = gpu_hours(planned, arguments.data or planned.folder / "data")
        lines = [f"{name:20}{value:8,.1f}" for name, value in {**hours, "all": sum(hours.values())}.items()]
        sys.stdout.write("\n".join(["GPU-hours, an estimate by the paper's 16.9 s on four GPUs:", *lines, ""]))
        sys.stdout.flush()
    return 0 if arguments.dry_run else arguments.carry_out(planned)


if __name__ == "__main__":
    run_script(Arguments, main)
