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
    """One quickstart: what decides it, and its plan.

    Its folder has dev_problems.jsonl, on which models are compared; the training runs ft_training and cobalt_training;
    the trajectories base, ft and ft_cobalt on those problems, and ft_collection on training problems; the rows ft_data
    and cobalt_data; and report.

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
    def dev(self) -> Path:
        """The development problems that the models are compared on."""
        return self.folder / "dev_problems.jsonl"

    def model(self, run: str) -> Path:
        """The policy of a training run of the study."""
        return pocket.trained_model(self.folder / run)

    def steps(self) -> tuple[Step, ...]:
        """The plan."""
        scale, seed, at, special = self.scale, self.seed, self.folder, self.special_cases
        # Studies of the same seed share the world.
        kind = f"special_{'' if special == 1 else f'{special:g}_'}" if special else "fast_" if self.fast else ""
        world = Path("pocket") / f"{kind}seed{seed}"
        base, collected, report = pocket.world_model(world), at / "collected_problems.jsonl", at / "report"
        flags = ["--demonstrations", f"{(SPECIAL if special else scale).demonstrations}"]
        if special:
            flags = ["--special_cases", f"{special:g}", "--open_share", "0", *flags]

        def evaluation(name: str, purpose: str, run: str, model: Path) -> Step:
            return pocket.trajectories(name, purpose, self.dev, at / run, model, seed, samples=1)

        def training(name: str, purpose: str, method: str, data: str, model: Path, settings: tuple[str, ...]) -> Step:
            return pocket.training(
                name,
                f"{purpose}, {scale.training_steps} steps ({'FT' if name == 'ft_training' else 'FT-Cobalt'}).",
                method,
                at / data,
                model,
                at / name,
                scale.training_steps,
                seed,
                validate_every=None if self.fast else 10,
                settings=settings if special else (),
            )

        return (
            pocket.pocket_world(world, seed, *flags),
            pocket.first_problems(
                "dev_problems",
                "Choose the problems that the models are compared on.",
                scale.dev_problems,
                pocket.problems(world, "dev"),
                self.dev,
            ),
            pocket.first_problems(
                "collected_problems",
                "Choose the problems that trajectories are collected for.",
                scale.collection_problems,
                pocket.problems(world, "train"),
                collected,
            ),
            evaluation("base_evaluation", "Evaluate the seed model (base).", "base", base),
            pocket.problem_rows("ft_rows", world, self.dev, at / "ft_data"),
            training(
                "ft_training",
                "Train the seed model by single-turn GRPO",
                "grpo_single_turn",
                "ft_data",
                base,
                _SPECIAL_FT,
            ),
            evaluation("ft_evaluation", "Evaluate FT.", "ft", self.model("ft_training")),
            pocket.trajectories(
                "ft_collection",
                "Collect FT's trajectories for training.",
                collected,
                at / "ft_collection",
                self.model("ft_training"),
                seed,
                samples=4,
                turns=2,
            ),
            pocket.partial_trajectory_rows(
                "cobalt_rows", at / "ft_collection", at / "ft", at / "cobalt_data", self.model("ft_training")
            ),
            training(
                "cobalt_training",
                "Train FT by GRPO on partial trajectories",
                "grpo_multi_turn",
                "cobalt_data",
                self.model("ft_training"),
                SPECIAL_COBALT,
            ),
            evaluation("cobalt_evaluation", "Evaluate FT-Cobalt.", "ft_cobalt", self.model("cobalt_training")),
            pocket.report(
                "report",
                "Compare the three models in tables and plots.",
                {"base": at / "base", "FT": at / "ft", "FT-Cobalt": at / "ft_cobalt"},
                report,
            ),
            pocket.training_plot(
                "training_plot",
                {"FT": at / "ft_training", "FT-Cobalt": at / "cobalt_training"},
                report / "training.png",
            ),
            pocket.viewer("viewer", at / "ft_cobalt", report / "ft_cobalt.html"),
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

    Raises UserError if the flags contradict one another, or a value is out of range.
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
        f"done. Tables and plots: {folder / 'report'} (report.md, pass_at_1.png, training.png); programs and verdicts"
        f" of every turn: {folder / 'report' / 'ft_cobalt.html'}, which opens in a browser." + small * arguments.fast,
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
