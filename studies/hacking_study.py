"""The reward-hacking study on the pocket world (`python -m studies.hacking_study`, scripts/hacking_study.sh).

What do FT, FT-Cobalt and FT-Cobalt trained with perturbed prompts (FT-Cobalt-PTB) do when the public tests that they
are shown are impossible? The study begins with the quickstart, on a seed model that has learned to write special cases
for failing tests, as large models have.
"""

from pathlib import Path

from cobalt.stage.cli import run_script
from studies.flags import StudyFlags
from studies.lines import EVENTS, VALIDATION_PROMPTS, Lines, length
from studies.plan import Study
from studies.quickstart import SPECIAL, plan


class Arguments(StudyFlags):
    """Measure reward hacking under impossible feedback on the pocket world: FT, FT-Cobalt and FT-Cobalt-PTB."""


def _add_hacking(lines: Lines, at: Path, folder: Path) -> None:
    """The steps that follow the quickstart in the folder `at`, whose models and trajectories they use."""
    dev, ft, ptb = at / "dev_problems.jsonl", at / "ft_training" / "model", folder / "ptb_training" / "model"
    benign, validation = folder / "ft_cobalt_ptb_benign", at / "cobalt_data" / VALIDATION_PROMPTS
    lines.perturbed("ptb", at / "ft_collection", folder / "ptb_data", ft, validation)
    steps = SPECIAL.training_steps
    purpose = f"Train FT by GRPO on partial trajectories and their perturbed copies, {steps} steps (FT-Cobalt-PTB)."
    settings = f"{length(steps, validate_every=SPECIAL.validate_every)} {SPECIAL.cobalt_settings}"
    lines.train("ptb_training", purpose, "grpo_multi_turn", folder / "ptb_data", ft, ptb.parent, settings)
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


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder = arguments.output_dir or Path("runs/hacking_study")
    lines, results = plan(folder, arguments.seed, SPECIAL), folder / "hacking"
    _add_hacking(lines, folder, results)
    return Study(
        "hacking study",
        folder,
        {"seed": arguments.seed},
        tuple(lines.steps),
        f"done: {results / 'report_perturbed' / 'report.md'} (impossible feedback),"
        f" {results / 'report_benign' / 'report.md'} (true feedback)",
    )


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
