"""The quickstart: the whole method on the pocket world (`python -m studies.quickstart`, scripts/quickstart.sh).

The seed model (base) is trained by single-turn GRPO (FT). FT's trajectories are cut into contextual prompts, and FT is
trained on those (FT-Cobalt). The three are compared over eight rounds of feedback.
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from studies import gpu_smoke, pocket
from studies.dry_run import dry_run
from studies.flags import StudyFlags
from studies.plan import Step, Study


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a study is.

    Attributes:
        demonstrations: Conversations that the seed model learns from.
        dev_problems: Problems that the models are compared on, one trajectory each.
        collection_problems: Problems that trajectories are collected for, four each.
        training_steps: Steps of each training run.
    """

    demonstrations: int
    dev_problems: int
    collection_problems: int
    training_steps: int


FULL = Scale(demonstrations=6500, dev_problems=120, collection_problems=300, training_steps=16)
FAST = Scale(demonstrations=1000, dev_problems=16, collection_problems=24, training_steps=2)
SPECIAL = Scale(demonstrations=6500, dev_problems=400, collection_problems=600, training_steps=30)
"""With special cases."""

_SPECIAL_FT = ("actor_rollout_ref.actor.optim.lr=1e-3", "actor_rollout_ref.actor.use_kl_loss=false")
SPECIAL_COBALT = ("actor_rollout_ref.actor.optim.lr=2e-4", "actor_rollout_ref.actor.use_kl_loss=false")
"""Settings of Cobalt's training in a world with special cases (docs/hacking.md)."""


@dataclass(frozen=True, slots=True)
class Quickstart:
    """One quickstart: what decides it, where its results lie, and its plan.

    Attributes:
        folder: Folder of the study.
        seed: Decides the pocket world and the samples.
        fast: Take too few problems and training steps to learn anything, and a weaker seed model.
        special_cases: Probability (0 to 1) of special cases for failing tests in the seed model's demonstrations. Above
            0 the world has no open sentences, and `fast` does not take a weaker seed model, which would find nothing to
            exploit.
    """

    folder: Path
    seed: int
    fast: bool = False
    special_cases: float = 0.0

    @property
    def arguments(self) -> dict[str, Any]:
        """What decides the results, for `Study.arguments`."""
        return {"seed": self.seed, "fast": self.fast, "special_cases": self.special_cases}

    @property
    def scale(self) -> Scale:
        """Number of problems and steps."""
        return FAST if self.fast else SPECIAL if self.special_cases else FULL

    @property
    def world(self) -> Path:
        """Folder of the pocket world, which studies of the same seed share."""
        share = "" if self.special_cases == 1 else f"{self.special_cases:g}_"
        kind = f"special_{share}" if self.special_cases else "fast_" if self.fast else ""
        return Path("pocket") / f"{kind}seed{self.seed}"

    @property
    def dev(self) -> Path:
        """The development problems that the models are compared on."""
        return self.folder / "dev_problems.jsonl"

    @property
    def ft_training(self) -> Path:
        """The training run of FT."""
        return self.folder / "ft_training"

    @property
    def ft(self) -> Path:
        """FT's trajectories on the development problems."""
        return self.folder / "ft"

    @property
    def ft_collection(self) -> Path:
        """FT's trajectories on training problems."""
        return self.folder / "ft_collection"

    @property
    def cobalt_data(self) -> Path:
        """Contextual prompts and rows of FT-Cobalt."""
        return self.folder / "cobalt_data"

    @property
    def cobalt_training(self) -> Path:
        """The training run of FT-Cobalt."""
        return self.folder / "cobalt_training"

    @property
    def ft_cobalt(self) -> Path:
        """FT-Cobalt's trajectories on the development problems."""
        return self.folder / "ft_cobalt"

    @property
    def report(self) -> Path:
        """Tables, plots and the viewer."""
        return self.folder / "report"

    def steps(self) -> tuple[Step, ...]:
        """The plan."""
        seed, steps, validated = self.seed, self.scale.training_steps, None if self.fast else 10
        base, collected = self.folder / "base", self.folder / "collected_problems.jsonl"
        base_model, ft_model = pocket.world_model(self.world), pocket.trained_model(self.ft_training)
        cobalt_model = pocket.trained_model(self.cobalt_training)
        world = ["--demonstrations", f"{self.scale.demonstrations}"]
        if self.special_cases:
            world = ["--special_cases", f"{self.special_cases:g}", "--open_share", "0"]
            world += ["--demonstrations", f"{SPECIAL.demonstrations}"]
        return (
            pocket.pocket_world(self.world, seed, *world),
            pocket.first_problems(
                "dev_problems",
                "Choose the problems that the models are compared on.",
                self.scale.dev_problems,
                pocket.problems(self.world, "dev"),
                self.dev,
            ),
            pocket.first_problems(
                "collected_problems",
                "Choose the problems that trajectories are collected for.",
                self.scale.collection_problems,
                pocket.problems(self.world, "train"),
                collected,
            ),
            pocket.trajectories(
                "base_evaluation",
                "Evaluate the seed model (base).",
                self.dev,
                base,
                base_model,
                seed,
                samples=1,
            ),
            pocket.problem_rows("ft_rows", self.world, self.dev, self.folder / "ft_data"),
            pocket.training(
                "ft_training",
                f"Train the seed model by single-turn GRPO, {steps} steps (FT).",
                "grpo_single_turn",
                self.folder / "ft_data",
                base_model,
                self.ft_training,
                steps,
                seed,
                validate_every=validated,
                settings=_SPECIAL_FT if self.special_cases else (),
            ),
            pocket.trajectories("ft_evaluation", "Evaluate FT.", self.dev, self.ft, ft_model, seed, samples=1),
            pocket.trajectories(
                "ft_collection",
                "Collect FT's trajectories for training.",
                collected,
                self.ft_collection,
                ft_model,
                seed,
                samples=4,
                turns=2,
            ),
            pocket.partial_trajectory_rows("cobalt_rows", self.ft_collection, self.ft, self.cobalt_data, ft_model),
            pocket.training(
                "cobalt_training",
                f"Train FT by GRPO on partial trajectories, {steps} steps (FT-Cobalt).",
                "grpo_multi_turn",
                self.cobalt_data,
                ft_model,
                self.cobalt_training,
                steps,
                seed,
                validate_every=validated,
                settings=SPECIAL_COBALT if self.special_cases else (),
            ),
            pocket.trajectories(
                "cobalt_evaluation", "Evaluate FT-Cobalt.", self.dev, self.ft_cobalt, cobalt_model, seed, samples=1
            ),
            pocket.report(
                "report",
                "Compare the three models in tables and plots.",
                {"base": base, "FT": self.ft, "FT-Cobalt": self.ft_cobalt},
                self.report,
            ),
            pocket.training_plot(
                "training_plot",
                {"FT": self.ft_training, "FT-Cobalt": self.cobalt_training},
                self.report / "training.png",
            ),
            pocket.viewer("viewer", self.ft_cobalt, self.report / "ft_cobalt.html"),
        )


@dataclass(frozen=True)
class Arguments(StudyFlags):
    """Run the whole method on the pocket world, on two CPU cores or one GPU, and compare base, FT and FT-Cobalt."""

    fast: bool = False
    """Run every step with a weaker seed model and too few problems and training steps to learn anything."""
    special_cases: float = 0.0
    """Probability (0 to 1) of special cases for failing tests in the seed model's demonstrations. Above 0, --fast does
    not take a weaker seed model."""
    profile: Literal["pocket", "gpu-smoke"] = "pocket"
    """pocket: on two CPU cores. gpu-smoke: on one GPU, in a quarter of an hour, with too few steps to learn anything.
    It ends with a report of tokens a second by phase (docs/reproduce.md)."""
    model: str | None = None
    """With gpu-smoke: folder or hub name of a small model to take as base, such as Qwen/Qwen3-0.6B. The default is the
    pocket world's seed model, which is trained first."""
    gpus: int = 1
    """With gpu-smoke: GPUs of both training runs."""
    dry_run: bool = False
    """Print the command of each step, check the configuration of each training run without a GPU, and stop."""


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for.

    Raises:
        UserError: the flags contradict one another, or a value is out of range.
    """
    if arguments.profile == gpu_smoke.PROFILE:
        if arguments.fast or arguments.special_cases:
            raise UserError("--profile gpu-smoke has sizes of its own: leave out --fast and --special_cases")
        return gpu_smoke.study(arguments.output_dir, arguments.seed, arguments.model, arguments.gpus)
    if arguments.model is not None or arguments.gpus != 1:
        raise UserError("--model and --gpus are for --profile gpu-smoke: give it too, or leave them out")
    if not 0 <= arguments.special_cases <= 1:
        raise UserError(f"--special_cases {arguments.special_cases}: a share lies between 0 and 1")
    folder = arguments.output_dir or Path("runs") / ("quickstart_fast" if arguments.fast else "quickstart")
    quickstart = Quickstart(folder, arguments.seed, arguments.fast, arguments.special_cases)
    flags = ["--fast"] if arguments.fast else []
    flags += ["--special_cases", f"{arguments.special_cases:g}"] if arguments.special_cases else []
    small = " With --fast the models learn next to nothing: that every step runs is what this shows."
    return Study(
        "quickstart",
        folder,
        quickstart.arguments,
        quickstart.steps(),
        shlex.join(["bash", "scripts/quickstart.sh", *flags, str(folder), str(arguments.seed)]),
        f"done. Tables and plots: {quickstart.report} (report.md, pass_at_1.png, training.png); programs and verdicts"
        f" of every turn: {quickstart.report / 'ft_cobalt.html'}, which opens in a browser." + small * arguments.fast,
    )


def main(arguments: Arguments) -> int:
    """List the study, check it or run it; returns the exit code."""
    planned = study(arguments)
    if not arguments.dry_run:
        return arguments.carry_out(planned)
    dry_run(planned, sys.stdout.write)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
