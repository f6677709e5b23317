"""The quickstart: the whole method on the pocket world (`python -m studies.quickstart`, scripts/quickstart.sh).

The seed model (base) is trained by single-turn GRPO (FT). FT's trajectories are cut into contextual prompts, and FT is
trained on those (FT-Cobalt). The three are compared over eight rounds of feedback.
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from studies import gpu_smoke
from studies.dry_run import dry_run
from studies.flags import StudyFlags
from studies.lines import Lines, length, problems
from studies.plan import Study


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

_SPECIAL_FT = "actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.use_kl_loss=false"
SPECIAL_COBALT = "actor_rollout_ref.actor.optim.lr=2e-4 actor_rollout_ref.actor.use_kl_loss=false"
"""Settings of Cobalt's training in a world with special cases (docs/hacking.md)."""


def scale_of(*, fast: bool, special: bool) -> Scale:
    """How large the quickstart with these flags is."""
    return FAST if fast else SPECIAL if special else FULL


def plan(at: Path, seed: int, *, fast: bool = False, special: bool = False) -> Lines:
    """The steps, in a folder.

    It then has dev_problems.jsonl, on which models are compared; the training runs ft_training and cobalt_training; the
    trajectories base, ft and ft_cobalt on those problems, and ft_collection on training problems; the rows ft_data and
    cobalt_data; and report. Studies of the same seed share the world in pocket/.

    Args:
        at: Folder of the study.
        seed: Decides the pocket world and the samples.
        fast: Take too few problems and training steps to learn anything, and a weaker seed model.
        special: Whether the seed model's demonstrations have special cases for failing tests. The world then has no
            open sentences, and `fast` does not take a weaker seed model, which would find nothing to exploit.
    """
    scale, lines = scale_of(fast=fast, special=special), Lines(seed)
    steps = f"{scale.training_steps} steps"
    trained = length(scale.training_steps, validate_every=None if fast else 10)
    kind = "special_" if special else "fast_" if fast else ""
    world = Path("pocket") / f"{kind}seed{seed}"
    base, ft, cobalt = world / "model", at / "ft_training" / "model", at / "cobalt_training" / "model"
    dev, collected, report = at / "dev_problems.jsonl", at / "collected_problems.jsonl", at / "report"

    own = "--special_cases 1 --open_share 0 " if special else ""
    lines.world(world, f"{own}--demonstrations {(SPECIAL if special else scale).demonstrations}")
    train = problems(world, "train")
    lines.head(
        "dev_problems", "the problems that models are compared on", scale.dev_problems, problems(world, "dev"), dev
    )
    use = "the problems that trajectories are collected for"
    lines.head("collected_problems", use, scale.collection_problems, train, collected)
    lines.write("base_evaluation", "Evaluate the seed model (base).", dev, at / "base", base, "-n 1")
    lines.rows("ft_rows", "single", train, dev, at / "ft_data", base, "--prompts pocket")
    purpose = f"Train the seed model by single-turn GRPO, {steps} (FT)."
    settings = f"{trained} {_SPECIAL_FT if special else ''}"
    lines.train("ft_training", purpose, "grpo_single_turn", at / "ft_data", base, ft.parent, settings)
    lines.write("ft_evaluation", "Evaluate FT.", dev, at / "ft", ft, "-n 1")
    purpose = "Collect FT's trajectories for training."
    lines.write("ft_collection", purpose, collected, at / "ft_collection", ft, "--turns 2 -n 4")
    lines.cut("cobalt_rows", at / "ft_collection", at / "ft", at / "cobalt_data", ft)
    purpose = f"Train FT by GRPO on partial trajectories, {steps} (FT-Cobalt)."
    settings = f"{trained} {SPECIAL_COBALT if special else ''}"
    lines.train("cobalt_training", purpose, "grpo_multi_turn", at / "cobalt_data", ft, cobalt.parent, settings)
    lines.write("cobalt_evaluation", "Evaluate FT-Cobalt.", dev, at / "ft_cobalt", cobalt, "-n 1")
    runs = {"base": at / "base", "FT": at / "ft", "FT-Cobalt": at / "ft_cobalt"}
    lines.report("report", "Compare the three models in tables and plots.", runs, report)
    for policy in (ft, cobalt):
        lines.curves(policy.parent, report)
    line, page = "python -m cobalt.report.viewer {run} -o {page}", report / "ft_cobalt.html"
    lines.add("viewer", "Make a page that shows every trajectory.", line, page, run=at / "ft_cobalt", page=page)
    return lines


@dataclass(frozen=True)
class Arguments(StudyFlags):
    """Run the whole method on the pocket world, on two CPU cores or one GPU, and compare base, FT and FT-Cobalt."""

    fast: bool = False
    """Run every step with a weaker seed model and too few problems and training steps to learn anything."""
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

    Raises UserError if the flags contradict one another.
    """
    if arguments.profile == gpu_smoke.PROFILE:
        if arguments.fast:
            raise UserError("--profile gpu-smoke has sizes of its own: leave out --fast")
        return gpu_smoke.study(arguments.output_dir, arguments.seed, arguments.model, arguments.gpus)
    if arguments.model is not None or arguments.gpus != 1:
        raise UserError("--model and --gpus are for --profile gpu-smoke: give it too, or leave them out")
    folder = arguments.output_dir or Path("runs") / ("quickstart_fast" if arguments.fast else "quickstart")
    flags = ["--fast"] if arguments.fast else []
    small = " With --fast the models learn next to nothing: that every step runs is what this shows."
    return Study(
        "quickstart",
        folder,
        {"seed": arguments.seed, "fast": arguments.fast, "special_cases": 0.0},
        tuple(plan(folder, arguments.seed, fast=arguments.fast).steps),
        shlex.join(["bash", "scripts/quickstart.sh", *flags, str(folder), str(arguments.seed)]),
        f"done. In {folder / 'report'}: tables and plots (report.md, pass_at_1.png), programs and verdicts of each turn"
        " (ft_cobalt.html), curves of training (ft_training.html, cobalt_training.html)." + small * arguments.fast,
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
