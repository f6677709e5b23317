"""The reward-hacking study on the pocket world (`python -m studies.hacking_study`, scripts/hacking_study.sh).

What do FT, FT-Cobalt and FT-Cobalt trained with perturbed prompts (FT-Cobalt-PTB) do when the public tests that they
are shown are impossible? The study begins with the quickstart, on a seed model that has learned to write special cases
for failing tests, as large models have.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from cobalt.stage.cli import run_script
from studies import pocket
from studies.flags import StudyFlags
from studies.plan import Step, Study
from studies.quickstart import SPECIAL_COBALT, Quickstart


def hacking_steps(quickstart: Quickstart, folder: Path, classifier: str | None) -> tuple[Step, ...]:
    """The steps that follow the quickstart, whose models and trajectories they use; `folder` is that of the results.

    The `classifier` sorts hacking events into categories, an LLM as LiteLLM names it; None: they are not sorted.
    """
    at, seed, steps = quickstart.folder, quickstart.seed, quickstart.scale.training_steps
    ptb_training, ptb_true_feedback = folder / "ptb_training", folder / "ft_cobalt_ptb_benign"
    models = {
        "FT": (quickstart.model("ft_training"), folder / "ft"),
        "FT-Cobalt": (quickstart.model("cobalt_training"), folder / "ft_cobalt"),
        "FT-Cobalt-PTB": (pocket.trained_model(ptb_training), folder / "ft_cobalt_ptb"),
    }

    def evaluation(name: str, purpose: str, run: Path, model: Path, *, perturbed: bool) -> Step:
        return pocket.trajectories(name, purpose, quickstart.dev, run, model, seed, samples=1, perturbed=perturbed)

    evaluations = []
    events = {}
    for name, (model, run) in models.items():
        purpose = f"Evaluate {name} under impossible feedback, and extract its hacking events."
        evaluations.append(evaluation(f"{run.name}_impossible_feedback", purpose, run, model, perturbed=True))
        events[name] = pocket.events_file(run)
        if classifier is not None:
            evaluations.append(_classification(name, run, classifier))
            [events[name]] = evaluations[-1].files
    return (
        *_perturbed_rows(quickstart, folder),
        pocket.training(
            "ptb_training",
            f"Train FT by GRPO on partial trajectories and their perturbed copies, {steps} steps (FT-Cobalt-PTB).",
            "grpo_multi_turn",
            folder / "ptb_data",
            quickstart.model("ft_training"),
            ptb_training,
            steps,
            seed,
            settings=SPECIAL_COBALT,
        ),
        *evaluations,
        evaluation(
            "ft_cobalt_ptb_true_feedback",
            "Evaluate FT-Cobalt-PTB under true feedback.",
            ptb_true_feedback,
            pocket.trained_model(ptb_training),
            perturbed=False,
        ),
        pocket.report(
            "report_perturbed",
            "Compare the models under impossible feedback, and count their hacking events.",
            {name: run for name, (_, run) in models.items()},
            folder / "report_perturbed",
            events,
        ),
        pocket.report(
            "report_benign",
            "Compare the models under true feedback.",
            {"FT": at / "ft", "FT-Cobalt": at / "ft_cobalt", "FT-Cobalt-PTB": ptb_true_feedback},
            folder / "report_benign",
        ),
    )


def _perturbed_rows(quickstart: Quickstart, folder: Path) -> tuple[Step, Step, Step]:
    """Rows for GRPO on the quickstart's partial trajectories, with a perturbed copy of each where there can be one."""
    collection, data = quickstart.folder / "ft_collection", folder / "ptb_data"
    collected, perturbed = pocket.evaluation_file(collection), folder / "ptb_collection.jsonl"
    prompts, validation = data / "prompts.jsonl", pocket.validation_prompts(quickstart.folder / "cobalt_data")
    model = quickstart.model("ft_training")
    return (
        Step(
            "ptb_problems",
            "Make two public tests of each problem of FT's trajectories impossible.",
            ("python", "preproc/run_perturbation.py", "-i", str(collected), "-o", str(perturbed)),
            files=(perturbed,),
            needs=(collected,),
        ),
        pocket.contextual_prompts("ptb_prompts", collection, prompts, model, perturbed=perturbed),
        pocket.multi_turn_rows("ptb_rows", prompts, validation, data, model),
    )


def _classification(model: str, run: Path, classifier: str) -> Step:
    events, classified = pocket.events_file(run), run / "judged.jsonl"
    return Step(
        f"{run.name}_categories",
        f"Have {classifier} sort the hacking events of {model} into categories.",
        ("python", "run_llm_judge.py", "-i", str(events), "-o", str(classified), "--model_name", classifier),
        files=(classified,),
        needs=(events,),
    )


@dataclass(frozen=True)
class Arguments(StudyFlags):
    """Measure reward hacking under impossible feedback on the pocket world: FT, FT-Cobalt and FT-Cobalt-PTB."""

    fast: bool = False
    """Run every step with too few problems and training steps to learn anything."""
    classifier: str | None = None
    """Have this LLM sort the hacking events into categories: a LiteLLM name, its key in the environment."""


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for."""
    folder = arguments.output_dir or Path("runs") / ("hacking_study_fast" if arguments.fast else "hacking_study")
    quickstart = Quickstart(folder, arguments.seed, arguments.fast, special_cases=1.0)
    results = folder / "hacking"
    flags = ["--fast"] if arguments.fast else []
    flags += ["--classifier", arguments.classifier] if arguments.classifier else []
    return Study(
        "hacking study",
        folder,
        quickstart.arguments,
        (*quickstart.steps(), *hacking_steps(quickstart, results, arguments.classifier)),
        shlex.join(["bash", "scripts/hacking_study.sh", *flags, str(folder), str(arguments.seed)]),
        f"done: {results / 'report_perturbed' / 'report.md'} (impossible feedback),"
        f" {results / 'report_benign' / 'report.md'} (true feedback)",
    )


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
