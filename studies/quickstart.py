"""The whole method, on the pocket world or on a GPU (`python -m studies.quickstart`, scripts/quickstart.sh).

The seed model (base) is trained by single-turn GRPO (FT). FT's trajectories are cut into contextual prompts, and FT is
trained on those (FT-Cobalt). The three are compared over eight rounds of feedback.

`--hacking` (scripts/hacking_study.sh) goes on to the study of reward hacking: what do FT, FT-Cobalt, and FT-Cobalt
trained with perturbed prompts (FT-Cobalt-PTB) do when the public tests that they are shown are impossible? Its seed
model has learned to write special cases for failing tests, as large models have.

`--profile gpu-smoke` (scripts/gpu_check.sh) takes the same steps with the GPU's kernels. Its sizes are so small that
nothing is learned; what is shown is that everything runs, how many tokens a second each phase makes, and how far vLLM's
probabilities are from the actor's (`studies.gpu_report`).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from studies.flags import StudyFlags
from studies.lines import EVENTS, VALIDATION_PROMPTS, Lines, length, problems
from studies.plan import Study

GPU_SMOKE = "gpu-smoke"


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a study, and the flags that go with it.

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


_NO_KL = "actor_rollout_ref.actor.use_kl_loss=false actor_rollout_ref.actor.optim.lr"
FULL = Scale(6500, 120, 300, 16, validate_every=10)
FAST = Scale(1000, 16, 24, 2)
SPECIAL = Scale(6500, 400, 600, 30, 10, ft_settings=f"{_NO_KL}=1e-3", cobalt_settings=f"{_NO_KL}=2e-4")
"""With a seed model that has learned special cases for failing tests (docs/hacking.md)."""
# Of fewer demonstrations hardly any program of the seed model is right; prompts are as long as in the profile.
_GPU = Scale(2500, 32, 64, 4, evaluation="--turns 2 -n 4", rows="--max_prompt_length 4096")


def add_method(lines: Lines, at: Path, world: Path, base: Path, scale: Scale) -> None:
    """The steps from the problems and the seed model, or another one, to the three evaluated models, in a folder.

    It then has dev_problems.jsonl, on which models are compared; the training runs ft_training and cobalt_training; the
    trajectories base, ft and ft_cobalt on those problems, and ft_collection on training problems; and the rows ft_data
    and cobalt_data.
    """
    ft, cobalt, thinking = at / "ft_training" / "model", at / "cobalt_training" / "model", scale.thinking
    dev, collected, train = at / "dev_problems.jsonl", at / "collected_problems.jsonl", problems(world, "train")
    rows, settings = f"{scale.rows} {thinking}", length(scale.training_steps, validate_every=scale.validate_every)
    # A small model of the hub thinks for longer than responses are.
    settings += " +data.apply_chat_template_kwargs.enable_thinking=false" if thinking else ""

    def evaluate(slug: str, run: str, model: Path) -> None:
        lines.write(f"{slug}_evaluation", dev, at / run, model, f"{scale.evaluation} {thinking}")

    lines.head("dev_problems", scale.dev_problems, problems(world, "dev"), dev)
    lines.head("collected_problems", scale.collection_problems, train, collected)
    evaluate("base", "base", base)
    lines.rows("ft_rows", "single", train, dev, at / "ft_data", base, f"--prompts pocket {rows}")
    overrides = f"{settings} {scale.ft_settings}"
    lines.train("ft_training", "grpo_single_turn", at / "ft_data", base, ft.parent, overrides)
    evaluate("ft", "ft", ft)
    run, data = at / "ft_collection", at / "cobalt_data"
    lines.write("ft_collection", collected, run, ft, f"{scale.collection} {thinking}")
    prompts, validation = data / "prompts.jsonl", data / VALIDATION_PROMPTS
    lines.prompts("prompts", run, prompts, ft, f"--prompts pocket {thinking}")
    lines.prompts("validation_prompts", at / "ft", validation, ft, f"--prompts pocket --is_test {thinking}")
    lines.rows("cobalt_rows", "multi", prompts, validation, data, ft, rows)
    lines.train("cobalt_training", "grpo_multi_turn", data, ft, cobalt.parent, f"{settings} {scale.cobalt_settings}")
    evaluate("cobalt", "ft_cobalt", cobalt)


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
    lines.report("report", runs, report)
    for method in ("ft", "cobalt"):
        lines.curves(at / f"{method}_training", report)
    line = ("python -m cobalt.report.viewer", at / "ft_cobalt", "-o", report / "ft_cobalt.html")
    lines.add("viewer", "Make a page that shows every trajectory.", *line, makes=line[-1:])
    return lines


def _add_hacking(lines: Lines, at: Path, folder: Path) -> None:
    """The steps that follow the quickstart in the folder `at`, whose models and trajectories they use."""
    dev, ft, ptb = at / "dev_problems.jsonl", at / "ft_training" / "model", folder / "ptb_training" / "model"
    benign, validation = folder / "ft_cobalt_ptb_benign", at / "cobalt_data" / VALIDATION_PROMPTS
    lines.perturbed("ptb", at / "ft_collection", folder / "ptb_data", ft, validation)
    settings = length(SPECIAL.training_steps, validate_every=SPECIAL.validate_every)
    settings += f" {SPECIAL.cobalt_settings}"
    lines.train("ptb_training", "grpo_multi_turn", folder / "ptb_data", ft, ptb.parent, settings)
    models = {
        "FT": (ft, folder / "ft"),
        "FT-Cobalt": (at / "cobalt_training" / "model", folder / "ft_cobalt"),
        "FT-Cobalt-PTB": (ptb, folder / "ft_cobalt_ptb"),
    }
    for model, run in models.values():
        lines.write(f"{run.name}_impossible_feedback", dev, run, model, "--perturbed -n 1")
    lines.write("ft_cobalt_ptb_true_feedback", dev, benign, ptb, "-n 1")
    runs = {name: run for name, (_, run) in models.items()}
    events = {name: run / EVENTS for name, run in runs.items()}
    lines.report("report_perturbed", runs, folder / "report_perturbed", events)
    runs = {"FT": at / "ft", "FT-Cobalt": at / "ft_cobalt", "FT-Cobalt-PTB": benign}
    lines.report("report_benign", runs, folder / "report_benign")


@dataclass(frozen=True)
class Arguments(StudyFlags):
    """Run the whole method on the pocket world, on two CPU cores or one GPU, and compare base, FT and FT-Cobalt."""

    fast: bool = False
    """Run every step with a weaker seed model and too few problems and training steps to learn anything."""
    hacking: bool = False
    """Measure reward hacking under impossible feedback, too, from a seed model of its own (docs/hacking.md)."""
    profile: Literal["pocket", "gpu-smoke"] = "pocket"
    """pocket: on two CPU cores. gpu-smoke: on one GPU, in a quarter of an hour, with too few steps to learn anything.
    It ends with a report of tokens a second by phase (docs/reproduce.md)."""
    model: str | None = None
    """With gpu-smoke: folder or hub name of a small model to take as base, such as Qwen/Qwen3-0.6B. The default is the
    pocket world's seed model, which is trained first."""
    gpus: int = 1
    """With gpu-smoke: GPUs of both training runs."""


def study(arguments: Arguments) -> Study:
    """The study that the flags ask for. Raises UserError if the flags contradict one another."""
    if arguments.profile == GPU_SMOKE:
        return _gpu_smoke(arguments)
    if arguments.model is not None or arguments.gpus != 1 or (arguments.fast and arguments.hacking):
        raise UserError("--model and --gpus are for --profile gpu-smoke alone, and --fast is not for --hacking")
    seed = arguments.seed
    if arguments.hacking:
        folder = arguments.output_dir or Path("runs/hacking_study")
        lines, results = plan(folder, seed, SPECIAL), folder / "hacking"
        _add_hacking(lines, folder, results)
        closing = f"done: in {results}, report_perturbed (impossible feedback) and report_benign (true feedback)"
        return lines.study("hacking study", folder, {"seed": seed}, closing)
    folder = arguments.output_dir or Path("runs") / ("quickstart_fast" if arguments.fast else "quickstart")
    small = " With --fast the models learn next to nothing: that every step runs is what this shows."
    closing = (
        f"done. In {folder / 'report'}: tables and plots (report.md, pass_at_1.png), programs and verdicts of each turn"
        " (ft_cobalt.html), curves of training (ft_training.html, cobalt_training.html)." + small * arguments.fast
    )
    lines = plan(folder, seed, FAST if arguments.fast else FULL)
    return lines.study("quickstart", folder, {"seed": seed, "fast": arguments.fast}, closing)


def _gpu_smoke(arguments: Arguments) -> Study:
    """The study on a GPU, or on several that both training runs shard the policy over, with an engine on each."""
    model, gpus, seed = arguments.model, arguments.gpus, arguments.seed
    if gpus < 1 or arguments.fast or arguments.hacking:
        raise UserError("--profile gpu-smoke takes --gpus of 1 or more, and neither --fast nor --hacking")
    named, several = f"_{Path(model).name}" if model else "", f"_{gpus}_gpus" if gpus > 1 else ""
    folder = arguments.output_dir or Path("runs") / f"gpu_smoke{named}{several}"
    world, report = Path("pocket") / f"gpu_smoke_seed{seed}", folder / "gpu_report.md"
    local = model is not None and Path(model).is_dir()
    base = world / "model" if model is None else Path(model) if local else folder / "base_model"
    lines = Lines(seed, inputs=(base,) if local else (), profile=GPU_SMOKE)
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
    words = ("python -m studies.gpu_report", folder, "--output_file", report)
    purpose = "Report versions, times, memory, and the agreement of vLLM and actor."
    lines.add("gpu_report", purpose, *words, makes=[report], shown=True)
    closing = f"done. Tokens a second by phase, memory, and the agreement of vLLM and actor: {report}"
    return lines.study("gpu smoke", folder, {"seed": seed, "model": model, "gpus": gpus}, closing)


if __name__ == "__main__":
    run_script(Arguments, lambda arguments: arguments.carry_out(study(arguments)))
