"""A row of the paper's table for Qwen3-8B, on one node of four GPUs (`python -m studies.paper_row`).

FT is base after single-turn GRPO on TACO-Cobalt. Cobalt trains base, and FT-Cobalt trains FT, on FT's trajectories. The
row and base are measured on LiveCodeBench over eight rounds of feedback. This has not been run: docs/reproduce.md has
the same commands one by one. Under Slurm a job runs this command, and another job goes on where it stopped.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cobalt.stage.cli import run_script
from studies.flags import StudyFlags, dry_run
from studies.lines import NO_VALIDATION, Lines
from studies.plan import Study

_PROBLEMS = {"train": 5853, "dev": 250, "lcb_v6": 175}
"""Problems of TACO-Cobalt and of LiveCodeBench's sixth file, by their cards, by the names of their files."""
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


def _add_data(lines: Lines, at: Path, data: Path, seed: int) -> None:
    """TACO-Cobalt made again, with the four easiest tests public by 16 attempts of another model, and LiveCodeBench."""
    online, coder, taco, attempts = "env HF_HUB_OFFLINE=0", at / "coder", at / "taco", at / "attempts.jsonl"
    lines.download("coder", "Qwen/Qwen2.5-Coder-7B-Instruct", coder)
    made = [taco / "train.jsonl", taco / "dev.jsonl"]
    lines.add("taco", "Make the problems.", f"{online} python preproc/preproc_taco.py -o", taco, makes=made)
    joined = []
    for split in ("train", "dev"):
        joined.append(at / f"attempts_{split}.jsonl")
        # Attempts of the coder do not think, and have the command's lengths.
        words = (f"python run_single_turn_vllm.py -n 16 --seed {seed} --input_file", taco / f"{split}.jsonl")
        result = ("--output_file", joined[-1])
        lines.add(f"attempts_{split}", "Judge attempts at them.", *words, *result, makes=joined[-1:], model=coder)
    joining = ('cat "$1" "$2" >"$3"', "attempts")
    lines.add("attempts", "Join the attempts.", "bash -c", joining, *joined, attempts, makes=[attempts])
    line, made = (f"{online} python preproc/preproc_taco.py -o", data), [data / "train.jsonl", data / "dev.jsonl"]
    lines.add("problems", "Make the easiest tests public.", *line, "--attempts_file", attempts, makes=made)
    line = (f"{online} python preproc/preproc_lcb_test6.py --paper_mode -o", data / "lcb_v6.jsonl")
    lines.add("lcb", "Make the problems of the evaluation.", *line, makes=line[-1:])


def _add_training(lines: Lines, at: Path, data: Path, base: Path, row: str) -> None:
    """The steps after the data and the base model."""
    ft, cobalt = at / "ft_training" / "model", at / "cobalt_training" / "model"
    problems = {name: data / f"{name}.jsonl" for name in _PROBLEMS}

    def write(name: str, source: str, model: Path, turns: int) -> None:
        lines.write(name, problems[source], at / name, model, f"--turns {turns} -n 16")

    def train(model: Path, method: str, rows: Path, policy: Path) -> None:
        settings = f"trainer.save_freq=2 {NO_VALIDATION}"
        lines.train(model.parent.name, method, rows, policy, model.parent, settings)

    write("base", "lcb_v6", base, 8)
    lines.rows("ft_rows", "single", problems["train"], problems["dev"], at / "ft_rows", base)
    train(ft, "grpo_single_turn", at / "ft_rows", base)
    if row != "FT":
        for split, flag in (("train", ""), ("dev", "--is_test")):
            write(f"ft_{split}", split, ft, 2)
            lines.prompts(f"{split}_prompts", at / f"ft_{split}", at / f"{split}_prompts.jsonl", ft, flag)
        rows = at / "cobalt_rows"
        lines.rows("cobalt_rows", "multi", at / "train_prompts.jsonl", at / "dev_prompts.jsonl", rows, ft)
        train(cobalt, "grpo_multi_turn", rows, base if row == "Cobalt" else ft)
    write("row", "lcb_v6", ft if row == "FT" else cobalt, 8)
    lines.report("report", {"base": at / "base", row: at / "row"}, at / "report")


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder = arguments.output_dir or Path("runs") / f"paper_{arguments.row.lower()}"
    here = Path(arguments.model).is_dir()
    base, data = Path(arguments.model) if here else folder / "base_model", arguments.data or folder / "data"
    inputs = [base] if here else []
    inputs += [data / f"{name}.jsonl" for name in _PROBLEMS] if arguments.data else []
    lines = Lines(
        arguments.seed,
        inputs=inputs,
        sampling="--max_tokens 6144 --enable_thinking",
        data_source=None,
        services={"engine": ["tensor_parallel_size=4"], "judge": ["paper=true"]},
        profile="paper",
    )
    if not here:
        lines.download("base_model", arguments.model, base)
    if arguments.data is None:
        _add_data(lines, folder, data, arguments.seed)
    _add_training(lines, folder, data, base, arguments.row)
    made_from = {"row": arguments.row, "model": arguments.model, "seed": arguments.seed, "data": str(data)}
    return lines.study("paper row", folder, made_from, f"done: {folder / 'report' / 'report.md'}")


def gpu_hours(planned: Study, data: Path) -> dict[str, float]:
    """GPU-hours of each step that needs GPUs, by the paper's figure for a training example: a rough estimate.

    Files that are there are counted; others have the published numbers of problems. The contextual prompts, whose
    number the paper does not give, are taken for as many as the problems until they are made.
    """

    def count(file: Path, otherwise: int) -> int:
        path = planned.root / file
        return sum(1 for _ in path.open("rb")) if path.exists() else otherwise

    train, dev, test = (count(data / f"{name}.jsonl", number) for name, number in _PROBLEMS.items())
    examples = {"attempts_train": train, "attempts_dev": dev, "ft_train": 3 * train, "ft_dev": 3 * dev}
    examples |= {"base": 9 * test, "row": 9 * test, "ft_training": 4 * train}  # epochs, and programs of a trajectory
    examples["cobalt_training"] = 2 * count(planned.folder / "train_prompts.jsonl", train)
    return {step.name: examples[step.name] * _HOURS for step in planned.steps if step.name in examples}


def main(arguments: Arguments) -> int:
    """List the study, or print what it needs and run it; returns the exit code."""
    planned = study(arguments)
    if arguments.list_steps:
        return arguments.carry_out(planned)
    dry_run(planned, sys.stdout.write, arguments.model)
    hours = gpu_hours(planned, arguments.data or planned.folder / "data")
    lines = [f"{name:20}{value:8,.1f}" for name, value in {**hours, "all": sum(hours.values())}.items()]
    print("GPU-hours, a rough estimate by the paper's 16.9 s on four GPUs:", *lines, sep="\n", flush=True)  # noqa: T201
    return 0 if arguments.dry_run else arguments.carry_out(planned)


if __name__ == "__main__":
    run_script(Arguments, main)
