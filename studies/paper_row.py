"""A row of the paper's table for Qwen3-8B, on one node of four GPUs (`python -m studies.paper_row`).

FT is base after single-turn GRPO on TACO-Cobalt. Cobalt trains base, and FT-Cobalt trains FT, on FT's trajectories. The
row and base are measured on LiveCodeBench over eight rounds of feedback. This has not been run: docs/reproduce.md has
the same commands one by one. Under Slurm a job runs this command, and another job goes on where it stopped.
"""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cobalt.stage.cli import run_script
from studies import pocket
from studies.dry_run import dry_run
from studies.flags import StudyFlags
from studies.lines import Lines
from studies.plan import Step, Study

TRAIN, DEV, TEST = 5853, 250, 175
"""Problems of TACO-Cobalt and of LiveCodeBench's sixth file, by their cards."""
_HOURS = 16.9 * 4 / 3600
"""GPU-hours of a training example, which must be a prompt with its 16 responses (docs/RESULTS.md), as the paper gives
them: seconds on four GPUs. Sampling alone takes less."""
_GIVEN = ("train", "dev", "lcb_v6")


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


def _make_data(plan: Lines, folder: Path) -> None:
    """TACO-Cobalt made again, with the four easiest tests public by 16 attempts of another model, and LiveCodeBench."""
    online, hub = "env HF_HUB_OFFLINE=0 python preproc", "env HF_HUB_OFFLINE=0 hf download"
    coder, sampled = folder / "coder", "python run_single_turn_vllm.py -n 16 --seed {seed}"
    plan.add("coder", "Download it.", f"{hub} Qwen/Qwen2.5-Coder-7B-Instruct --local-dir {{at}}/coder", "{at}/coder")
    plan.add(
        *("taco", "Make the problems."),
        *(f"{online}/preproc_taco.py -o {{at}}/taco", "{at}/taco/train.jsonl {at}/taco/dev.jsonl"),
    )
    for split in ("train", "dev"):
        line = f"{sampled} --input_file {{at}}/taco/{split}.jsonl --output_file {{at}}/attempts_{split}.jsonl"
        plan.add(f"attempts_{split}", "Judge attempts at them.", line, f"{{at}}/attempts_{split}.jsonl", coder)
    joined = ("bash", "-c", 'cat "$1" "$2" >"$3"', "attempts")
    files = [folder / f"attempts_{name}.jsonl" for name in ("train", "dev")]
    attempts = folder / "attempts.jsonl"
    plan.append(
        Step("attempts", "Join the attempts.", (*joined, *map(str, (*files, attempts))), (attempts,), tuple(files))
    )
    plan.add(
        *("problems", "Make the easiest tests public."),
        f"{online}/preproc_taco.py -o {{data}} --attempts_file {{at}}/attempts.jsonl",
        "{data}/train.jsonl {data}/dev.jsonl",
    )
    line = f"{online}/preproc_lcb_test6.py --paper_mode -o {{data}}/lcb_v6.jsonl"
    plan.add("lcb", "Make the problems of the evaluation.", line, "{data}/lcb_v6.jsonl")


def _train_and_measure(plan: Lines, folder: Path, base: Path, row: str, seed: int) -> None:
    """The steps after the data and the base model."""
    ft, cobalt = folder / "ft_training", folder / "cobalt_training"
    ft_model = pocket.trained_model(ft)

    def write(name: str, purpose: str, source: str, model: Path, turns: int) -> None:
        line = f"bash scripts/multi_turn.sh {{data}}/{source}.jsonl {{at}}/{name} --turns {turns} -n 16 --seed {{seed}}"
        line += " --max_tokens 6144 --enable_thinking"
        plan.add(name, purpose, line, f"{{at}}/{name}/evaluation.jsonl", model)

    def train(run: Path, method: str, rows: Path, model: Path) -> None:
        step = pocket.training(
            *(run.name, "Train by GRPO, as many epochs as the paper.", method, rows, model, run, None, seed),
            save_every=10,
            validate_every=None,
            scale="paper",
        )
        plan.append(replace(step, command=("env", "COBALT_JUDGE_PAPER=true", *step.command)))

    write("base", "Measure base.", "lcb_v6", base, 8)
    plan.add(
        *("ft_rows", "Write the rows of single-turn GRPO for veRL."),
        "python preproc/verl_preproc_single_turn.py --train_file {data}/train.jsonl --validation_file {data}/dev.jsonl"
        " --local_dir {at}/ft_rows --model_name {base}",
        "{at}/ft_rows/train.parquet {at}/ft_rows/validation.parquet",
    )
    train(ft, "grpo_single_turn", folder / "ft_rows", base)
    if row != "FT":
        for split, flag in (("train", ""), ("dev", " --is_test")):
            write(f"ft_{split}", "Collect FT's trajectories.", split, ft_model, 2)
            line = f"python preproc/process_multi_turn_taco.py --input_file {{at}}/ft_{split}/evaluation.jsonl{flag}"
            line += f" --output_file {{at}}/{split}_prompts.jsonl --model_name {{ft}}"
            plan.add(f"{split}_prompts", "Cut them into contextual prompts.", line, f"{{at}}/{split}_prompts.jsonl")
        plan.add(
            *("cobalt_rows", "Write the prompts as rows for veRL."),
            "python preproc/verl_preproc_multi_turn.py --train_file {at}/train_prompts.jsonl --validation_file"
            " {at}/dev_prompts.jsonl --local_dir {at}/cobalt_rows --model_name {ft}",
            "{at}/cobalt_rows/train.parquet {at}/cobalt_rows/validation.parquet",
        )
        train(cobalt, "grpo_multi_turn", folder / "cobalt_rows", base if row == "Cobalt" else ft_model)
    write("row", f"Measure {row}.", "lcb_v6", pocket.trained_model(ft if row == "FT" else cobalt), 8)
    runs = {"base": folder / "base", row: folder / "row"}
    plan.append(pocket.report("report", "Compare base and the row.", runs, folder / "report"))


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder = arguments.output_dir or Path("runs") / f"paper_{arguments.row.lower()}"
    here = Path(arguments.model).is_dir()
    base, data = Path(arguments.model) if here else folder / "base_model", arguments.data or folder / "data"
    given = [base] if here else []
    given += [data / f"{name}.jsonl" for name in _GIVEN] if arguments.data else []
    names = {"at": folder, "data": data, "base": base, "seed": arguments.seed, "hub": arguments.model}
    names["ft"] = pocket.trained_model(folder / "ft_training")
    plan = Lines(names, given, ("tensor_parallel_size=4",), ("paper=true",))
    if not here:
        plan.add("base_model", "Download it.", "env HF_HUB_OFFLINE=0 hf download {hub} --local-dir {base}", "{base}")
    if arguments.data is None:
        _make_data(plan, folder)
    _train_and_measure(plan, folder, base, arguments.row, arguments.seed)
    again = ["python", "-m", "studies.paper_row", str(folder), str(arguments.seed), "--row", arguments.row]
    again += ["--model", arguments.model, *(["--data", str(data)] if arguments.data else [])]
    return Study(
        "paper row",
        folder,
        {"row": arguments.row, "model": arguments.model, "seed": arguments.seed, "data": str(data)},
        tuple(plan.steps),
        shlex.join(again),
        f"done: {folder / 'report' / 'report.md'}",
        given=tuple(given),
        given_by="the commands of docs/reproduce.md that make it",
    )


def gpu_hours(planned: Study, data: Path) -> Iterator[tuple[str, float]]:
    """GPU-hours of each step that needs GPUs, by the paper's figure for a training example: a guess from above.

    Files that are there are counted; others have the published numbers of problems. The contextual prompts, whose
    number the paper does not give, are taken for as many as the problems until they are made.
    """

    def count(file: Path, otherwise: int) -> int:
        path = planned.root / file
        return sum(1 for _ in path.open("rb")) if path.exists() else otherwise

    train, dev, test = (
        count(data / f"{name}.jsonl", number) for name, number in zip(_GIVEN, (TRAIN, DEV, TEST), strict=True)
    )
    examples = {"attempts_train": train, "attempts_dev": dev, "ft_train": 3 * train, "ft_dev": 3 * dev}
    examples |= {"base": 9 * test, "row": 9 * test, "ft_training": 4 * train}  # epochs, and programs of a trajectory
    examples["cobalt_training"] = 2 * count(planned.folder / "train_prompts.jsonl", train)
    for step in planned.steps:
        if step.name in examples:
            yield step.name, examples[step.name] * _HOURS


def main(arguments: Arguments) -> int:
    """List the study, or print what it needs and run it; returns the exit code."""
    planned = study(arguments)
    if not arguments.list_steps:
        dry_run(planned, sys.stdout.write, arguments.model)
        hours = dict(gpu_hours(planned, arguments.data or planned.folder / "data"))
        lines = [f"{name:20}{value:8,.1f}" for name, value in {**hours, "all": sum(hours.values())}.items()]
        sys.stdout.write("\n".join(["GPU-hours, a guess from above by the paper's 16.9 s on four GPUs:", *lines, ""]))
        sys.stdout.flush()
    return 0 if arguments.dry_run else arguments.carry_out(planned)


if __name__ == "__main__":
    run_script(Arguments, main)
