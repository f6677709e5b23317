"""The whole method, on the pocket world or on a GPU (`python -m studies.quickstart`, scripts/quickstart.sh).

The seed model (base) is trained by single-turn GRPO (FT). FT's trajectories are cut into contextual prompts, and FT is
trained on those (FT-Cobalt). The three are compared over eight rounds of feedback.

`--profile gpu-smoke` (scripts/gpu_check.sh) takes the same steps with the GPU's kernels. Its sizes are so small that
nothing is learned; what is shown is that everything runs, how many tokens a second each phase makes, and how far vLLM's
probabilities are from the actor's (`studies.gpu_report`).
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from studies.dry_run import dry_run
from studies.flags import StudyFlags
from studies.lines import VALIDATION_PROMPTS, Lines, length, problems
from studies.plan import Study

GPU_SMOKE = "gpu-smoke"


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a study is, and the flags that go with it.

    Attributes:
        demonstrations: Conversations that the seed model learns from.
        dev_problems: Problems that the models are compared on.
        collection_problems: Problems that trajectories are collected for.
        training_steps: Steps of each training run.
        validate_every: Steps of a training run between validations; None: it has none.
        evaluation: Flags of the trajectories on `dev_problems`.
        collection: Flags of those on `collection_problems`.
        rows: Flags of both kinds of rows.
        thinking: Flag of the chat template of every step that has one.
        ft_settings: Of training FT.
        cobalt_settings: Of training FT-Cobalt.
        profile: Of both training runs.
    """

    demonstrations: int
    dev_problems: int
    collection_problems: int
    training_steps: int
    validate_every: int | None = None
    evaluation: str = "-n 1"
    collection: str = "--turns 2 -n 4"
    rows: str = ""
    thinking: str = ""
    ft_settings: str = ""
    cobalt_settings: str = ""
    profile: str = "pocket"


_NO_KL = "actor_rollout_ref.actor.use_kl_loss=false actor_rollout_ref.actor.optim.lr"
FULL = Scale(6500, 120, 300, 16, validate_every=10)
FAST = Scale(1000, 16, 24, 2)
SPECIAL = Scale(6500, 400, 600, 30, 10, ft_settings=f"{_NO_KL}=1e-3", cobalt_settings=f"{_NO_KL}=2e-4")
"""With a seed model that has learned special cases for failing tests (docs/hacking.md)."""
# Of fewer demonstrations hardly any program of the seed model is right; prompts are as long as in the profile.
_GPU = Scale(
    2500, 32, 64, 4, evaluation="--turns 2 -n 4", rows="--max_prompt_length 4096", profile=GPU_SMOKE
)  # fmt: skip


def add_method(lines: Lines, at: Path, world: Path, base: Path, scale: Scale) -> None:
    """The steps from the problems and the seed model, or another one, to the three evaluated models, in a folder.

    It then has dev_problems.jsonl, on which models are compared; the training runs ft_training and cobalt_training; the
    trajectories base, ft and ft_cobalt on those problems, and ft_collection on training problems; and the rows ft_data
    and cobalt_data.
    """
    ft, cobalt, thinking = at / "ft_training" / "model", at / "cobalt_training" / "model", scale.thinking
    dev, collected, train = at / "dev_problems.jsonl", at / "collected_problems.jsonl", problems(world, "train")
    rows, steps = f"{scale.rows} {thinking}", f"{scale.training_steps} steps"
    settings = length(scale.training_steps, validate_every=scale.validate_every)
    # A small model of the hub thinks for longer than responses are.
    settings += " +data.apply_chat_template_kwargs.enable_thinking=false" if thinking else ""

    def evaluate(slug: str, run: str, name: str, model: Path) -> None:
        flags = f"{scale.evaluation} {thinking}"
        lines.write(f"{slug}_evaluation", f"Evaluate {name}.", dev, at / run, model, flags)

    lines.head(
        "dev_problems", "the problems that models are compared on", scale.dev_problems, problems(world, "dev"), dev
    )
    use = "the problems that trajectories are collected for"
    lines.head("collected_problems", use, scale.collection_problems, train, collected)
    evaluate("base", "base", "the base model", base)
    lines.rows("ft_rows", "single", train, dev, at / "ft_data", base, f"--prompts pocket {rows}")
    purpose, overrides = f"Train the base model by single-turn GRPO, {steps} (FT).", f"{settings} {scale.ft_settings}"
    data, run = at / "ft_data", ft.parent
    lines.train("ft_training", purpose, "grpo_single_turn", data, base, run, overrides, profile=scale.profile)
    evaluate("ft", "ft", "FT", ft)
    purpose, run = "Collect FT's trajectories for training.", at / "ft_collection"
    lines.write("ft_collection", purpose, collected, run, ft, f"{scale.collection} {thinking}")
    data = at / "cobalt_data"
    prompts, validation = data / "prompts.jsonl", data / VALIDATION_PROMPTS
    lines.prompts("prompts", run, prompts, ft, f"--prompts pocket {thinking}")
    lines.prompts("validation_prompts", at / "ft", validation, ft, f"--prompts pocket --is_test {thinking}")
    lines.rows("cobalt_rows", "multi", prompts, validation, data, ft, rows)
    purpose, run = f"Train FT by GRPO on partial trajectories, {steps} (FT-Cobalt).", cobalt.parent
    overrides = f"{settings} {scale.cobalt_settings}"
    lines.train("cobalt_training", purpose, "grpo_multi_turn", data, ft, run, overrides, profile=scale.profile)
    evaluate("cobalt", "ft_cobalt", "FT-Cobalt", cobalt)


def plan(at: Path, seed: int, scale: Scale) -> Lines:
    """The steps on the pocket world, in a folder: those of `add_method`, and report.

    Studies of the same seed share the world in pocket/. With `SPECIAL` it has no open sentences.
    """
    lines, kind = Lines(seed), {FAST: "fast_", SPECIAL: "special_"}.get(scale, "")
    world = Path("pocket") / f"{kind}seed{seed}"
    own = "--special_cases 1 --open_share 0 " if scale is SPECIAL else ""
    lines.world(world, f"{own}--demonstrations {scale.demonstrations}")
    add_method(lines, at, world, world / "model", scale)
    runs, report = {"base": at / "base", "FT": at / "ft", "FT-Cobalt": at / "ft_cobalt"}, at / "report"
    lines.report("report", "Compare the three models in tables and plots.", runs, report)
    for method in ("ft", "cobalt"):
        lines.curves(at / f"{method}_training", report)
    line = ("python -m cobalt.report.viewer", at / "ft_cobalt", "-o", report / "ft_cobalt.html")
    lines.add("viewer", "Make a page that shows every trajectory.", *line, makes=line[-1:])
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
    if arguments.profile == GPU_SMOKE:
        return _gpu_smoke(arguments)
    if arguments.model is not None or arguments.gpus != 1:
        raise UserError("--model and --gpus are for --profile gpu-smoke: give it too, or leave them out")
    folder = arguments.output_dir or Path("runs") / ("quickstart_fast" if arguments.fast else "quickstart")
    small = " With --fast the models learn next to nothing: that every step runs is what this shows."
    return Study(
        "quickstart",
        folder,
        {"seed": arguments.seed, "fast": arguments.fast},
        tuple(plan(folder, arguments.seed, FAST if arguments.fast else FULL).steps),
        f"done. In {folder / 'report'}: tables and plots (report.md, pass_at_1.png), programs and verdicts of each turn"
        " (ft_cobalt.html), curves of training (ft_training.html, cobalt_training.html)." + small * arguments.fast,
    )


def _gpu_smoke(arguments: Arguments) -> Study:
    """The study on a GPU, or on several that both training runs shard the policy over, with an engine on each."""
    model, gpus, seed = arguments.model, arguments.gpus, arguments.seed
    if gpus < 1:
        raise UserError(f"--gpus {gpus}: it must be 1 or more")
    if arguments.fast:
        raise UserError("--profile gpu-smoke has sizes of its own: leave out --fast")
    named = f"_{Path(model).name}" if model else ""
    several = f"_{gpus}_gpus" if gpus > 1 else ""
    folder = arguments.output_dir or Path("runs") / f"gpu_smoke{named}{several}"
    world, report = Path("pocket") / f"gpu_smoke_seed{seed}", folder / "gpu_report.md"
    local = model is not None and Path(model).is_dir()
    base = world / "model" if model is None else Path(model) if local else folder / "base_model"
    if local and not (base / "config.json").is_file():
        raise UserError(f"--model {model} is not a model's folder, because it has no config.json")
    lines = Lines(seed, inputs=(base,) if local else ())
    if model is None:
        lines.world(world, f"--demonstrations {_GPU.demonstrations}")
    else:
        line = ("python -m cobalt.pocket --output_dir", world, f"--seed {seed} --problems_only")
        made = [problems(world, split) for split in ("train", "dev", "test")]
        lines.add("pocket_problems", "Make the problems of the pocket world.", *line, makes=made)
        if not local:
            lines.download("base_model", model, base)
    settings = f"trainer.n_gpus_per_node={gpus}" if gpus > 1 else ""
    thinking = "--chat_template_thinking off" if model else ""
    scale = replace(_GPU, thinking=thinking, ft_settings=settings, cobalt_settings=settings)
    add_method(lines, folder, world, base, scale)
    reporting = ("python -m studies.gpu_report", folder, "--output_file", report)
    purpose = "Report versions, times, memory, and the agreement of vLLM and actor."
    lines.add("gpu_report", purpose, *reporting, makes=[report], shown=True)
    return Study(
        "gpu smoke",
        folder,
        {"seed": seed, "model": model, "gpus": gpus},
        tuple(lines.steps),
        f"done. Tokens a second by phase, memory, and the agreement of vLLM and actor: {report}",
        inputs=(base,) if local else (),
        made_by="the training or the download of that model",
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
