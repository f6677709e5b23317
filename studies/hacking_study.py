"""The reward-hacking study on the pocket world (`python -m studies.hacking_study`, scripts/hacking_study.sh).

What do FT, FT-Cobalt and FT-Cobalt trained with perturbed prompts (FT-Cobalt-PTB) do when the public tests that they
are shown are impossible? The study begins with the quickstart, on a seed model that has learned to write special cases
for failing tests, as large models have.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from cobalt.stage.cli import run_script
from studies.flags import StudyFlags
from studies.lines import EVENTS, VALIDATION_PROMPTS, Lines, length
from studies.plan import Study
from studies.quickstart import SPECIAL_COBALT, plan, scale_of


def add_hacking(lines: Lines, at: Path, *, fast: bool) -> None:
    """The steps that follow the quickstart in the folder `at`, whose models and trajectories they use."""
    folder, dev, ft = at / "hacking", at / "dev_problems.jsonl", at / "ft_training" / "model"
    data, ptb, benign = folder / "ptb_data", folder / "ptb_training" / "model", folder / "ft_cobalt_ptb_benign"
    perturbed, prompts = folder / "ptb_collection.jsonl", data / "prompts.jsonl"
    lines.perturb("ptb_problems", at / "ft_collection", perturbed)
    flags = "--prompts pocket --perturbed_ratio 1 --perturbed_file {perturbed}"
    lines.prompts("ptb_prompts", at / "ft_collection", prompts, ft, flags, perturbed=perturbed)
    lines.rows("ptb_rows", "multi", prompts, at / "cobalt_data" / VALIDATION_PROMPTS, data, ft)
    steps = scale_of(fast=fast, special=True).training_steps
    purpose = f"Train FT by GRPO on partial trajectories and their perturbed copies, {steps} steps (FT-Cobalt-PTB)."
    settings = f"{length(steps, validate_every=10)} {SPECIAL_COBALT}"
    lines.train("ptb_training", purpose, "grpo_multi_turn", data, ft, ptb.parent, settings)
    models = {
        "FT": (ft, folder / "ft"),
        "FT-Cobalt": (at / "cobalt_training" / "model", folder / "ft_cobalt"),
        "FT-Cobalt-PTB": (ptb, folder / "ft_cobalt_ptb"),
    }
    for name, (model, run) in models.items():
        purpose = f"Evaluate {name} under impossible feedback, and extract its hacking events."
        lines.write(f"{run.name}_impossible_feedback", purpose, dev, run, model, "--perturbed -n 1")
    purpose = "Evaluate FT-Cobalt-PTB under true feedback."
    lines.write("ft_cobalt_ptb_true_feedback", purpose, dev, benign, ptb, "-n 1")
    purpose = "Compare the models under impossible feedback, and count their hacking events."
    runs = {name: run for name, (_, run) in models.items()}
    events = {name: run / EVENTS for name, run in runs.items()}
    lines.report("report_perturbed", purpose, runs, folder / "report_perturbed", events)
    runs = {"FT": at / "ft", "FT-Cobalt": at / "ft_cobalt", "FT-Cobalt-PTB": benign}
    lines.report("report_benign", "Compare the models under true feedback.", runs, folder / "report_benign")


@dataclass(frozen=True)
class Arguments(StudyFlags):
    """Measure reward hacking under impossible feedback on the pocket world: FT, FT-Cobalt and FT-Cobalt-PTB."""

    fast: bool = False
    """Run every step with too few problems and training steps to learn anything."""


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder = arguments.output_dir or Path("runs") / ("hacking_study_fast" if arguments.fast else "hacking_study")
    lines, results = plan(folder, arguments.seed, fast=arguments.fast, special=True), folder / "hacking"
    add_hacking(lines, folder, fast=arguments.fast)
    flags = ["--fast"] if arguments.fast else []
    return Study(
        "hacking study",
        folder,
        {"seed": arguments.seed, "fast": arguments.fast, "special_cases": 1.0},
        tuple(lines.steps),
        shlex.join(["bash", "scripts/hacking_study.sh", *flags, str(folder), str(arguments.seed)]),
        f"done: {results / 'report_perturbed' / 'report.md'} (impossible feedback),"
        f" {results / 'report_benign' / 'report.md'} (true feedback)",
    )


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
