"""The whole method on a GPU or several in a quarter of an hour (`quickstart --profile gpu-smoke`, `gpu_check.sh`).

Collection, cutting, FT, Cobalt and evaluation run with the GPU's kernels, on the pocket world's problems. The sizes are
so small that nothing is learned; what is shown is that everything runs, how many tokens a second each phase makes, and
how far vLLM's probabilities are from the actor's. The configuration of both training runs is
`cobalt_verl/config/scale/gpu-smoke.yaml`.
"""

import shlex
from pathlib import Path

from cobalt.stage.errors import UserError
from studies import pocket
from studies.plan import Step, Study

PROFILE = "gpu-smoke"

_DEMONSTRATIONS = 2500  # fewer, and hardly any program of the seed model is right
_DEV_PROBLEMS = 32
_COLLECTION_PROBLEMS = 64
_SAMPLES = 4
_STEPS = 4
_LONGEST_PROMPT = "4096"  # as in the profile

# A small model of the hub thinks for longer than the profile's responses are.
_NO_THINKING = ("--chat_template_thinking", "off")
_NO_THINKING_IN_TRAINING = "+data.apply_chat_template_kwargs.enable_thinking=false"


def study(folder: Path | None, seed: int, model: str | None, gpus: int = 1) -> Study:
    """The study.

    Args:
        folder: Of the results; None: runs/gpu_smoke, with the name of a given model at its end.
        seed: Decides the problems and the samples.
        model: Folder or hub name of the base model; None: the pocket world's seed model.
        gpus: GPUs of both training runs: the policy is sharded over them, and each has an engine.

    Raises:
        UserError: the model's folder has no model, or the number of GPUs is below 1.
    """
    if gpus < 1:
        raise UserError(f"--gpus {gpus}: it must be 1 or more")
    several = f"_{gpus}_gpus" if gpus > 1 else ""
    name = "gpu_smoke" if model is None else f"gpu_smoke_{Path(model).name}"
    folder = folder or Path("runs") / f"{name}{several}"
    world = Path("pocket") / f"gpu_smoke_seed{seed}"
    base, first, given = _base_model(folder, world, seed, model)
    report = folder / "gpu_report.md"
    settings = () if gpus == 1 else (f"trainer.n_gpus_per_node={gpus}",)
    more = {"--model": model, "--gpus": str(gpus) if gpus > 1 else None}
    flags = ("--profile", PROFILE, *(word for flag, value in more.items() if value for word in (flag, value)))
    return Study(
        "gpu smoke",
        folder,
        {"seed": seed, "profile": PROFILE, "model": model} | ({"gpus": gpus} if gpus > 1 else {}),
        (*first, *_steps(folder, world, seed, base, report, settings)),
        shlex.join(["bash", "scripts/quickstart.sh", *flags, str(folder), str(seed)]),
        f"done. Tokens a second by phase, memory, and the agreement of vLLM and actor: {report}",
        given=given,
        given_by="the training or the download of that model",
    )


def _base_model(
    folder: Path, world: Path, seed: int, model: str | None
) -> tuple[Path, tuple[Step, ...], tuple[Path, ...]]:
    """The base model's folder, the steps that make the problems and the model, and what must be there before."""
    if model is None:
        made = pocket.pocket_world(world, seed, "--demonstrations", str(_DEMONSTRATIONS))
        return pocket.world_model(world), (made,), ()
    problems = Step(
        "pocket_problems",
        "Make the problems of the pocket world.",
        ("python", "-m", "cobalt.pocket", "--output_dir", str(world), "--seed", str(seed), "--problems_only"),
        files=tuple(pocket.problems(world, split) for split in ("train", "dev", "test")),
    )
    if Path(model).is_dir():
        if not (Path(model) / "config.json").is_file():
            raise UserError(f"--model {model} is not a model's folder, because it has no config.json")
        return Path(model), (problems,), (Path(model),)
    base = folder / "base_model"
    download = Step(
        "base_model",
        f"Download {model} (base).",
        ("env", "HF_HUB_OFFLINE=0", "hf", "download", model, "--local-dir", str(base)),
        files=(base,),
    )
    return base, (problems, download), ()


def _steps(
    folder: Path, world: Path, seed: int, base: Path, report: Path, settings: tuple[str, ...]
) -> tuple[Step, ...]:
    from_hub = base != pocket.world_model(world)
    dev, collected = folder / "dev_problems.jsonl", folder / "collected_problems.jsonl"
    ft_run, cobalt_run = folder / "ft_training", folder / "cobalt_training"
    ft_model, cobalt_model = pocket.trained_model(ft_run), pocket.trained_model(cobalt_run)
    prompts, validation = folder / "prompts.jsonl", folder / "validation_prompts.jsonl"
    thinking = _NO_THINKING if from_hub else ()
    rows = ("--max_prompt_length", _LONGEST_PROMPT, *thinking)
    settings += (_NO_THINKING_IN_TRAINING,) if from_hub else ()

    def trajectories(name: str, purpose: str, source: Path, model: Path) -> Step:
        run = folder / name
        return pocket.trajectories(name, purpose, source, run, model, seed, samples=_SAMPLES, turns=2, flags=thinking)

    def training(name: str, purpose: str, method: str, data: Path, model: Path, run: Path) -> Step:
        return pocket.training(
            name, purpose, method, data, model, run, _STEPS, seed, validate_every=None, settings=settings, scale=PROFILE
        )

    return (
        pocket.first_problems(
            "dev_problems",
            "Choose the problems for evaluation.",
            _DEV_PROBLEMS,
            pocket.problems(world, "dev"),
            dev,
        ),
        pocket.first_problems(
            "collected_problems",
            "Choose the problems for collection.",
            _COLLECTION_PROBLEMS,
            pocket.problems(world, "train"),
            collected,
        ),
        trajectories("base_evaluation", "Evaluate the base model.", dev, base),
        pocket.problem_rows("ft_rows", world, dev, folder / "ft_data", *rows, model=base),
        training(
            "ft_training",
            f"Train the base model by single-turn GRPO, {_STEPS} steps (FT).",
            "grpo_single_turn",
            folder / "ft_data",
            base,
            ft_run,
        ),
        trajectories("ft_evaluation", "Evaluate FT.", dev, ft_model),
        trajectories("ft_collection", "Collect FT's trajectories for training.", collected, ft_model),
        pocket.contextual_prompts("prompts", folder / "ft_collection", prompts, ft_model, flags=thinking),
        pocket.contextual_prompts(
            "validation_prompts", folder / "ft_evaluation", validation, ft_model, is_test=True, flags=thinking
        ),
        pocket.multi_turn_rows("cobalt_rows", prompts, validation, folder / "cobalt_data", ft_model, *rows),
        training(
            "cobalt_training",
            f"Train FT by GRPO on partial trajectories, {_STEPS} steps (FT-Cobalt).",
            "grpo_multi_turn",
            folder / "cobalt_data",
            ft_model,
            cobalt_run,
        ),
        trajectories("cobalt_evaluation", "Evaluate FT-Cobalt.", dev, cobalt_model),
        Step(
            "gpu_report",
            "Report versions, times, memory, and the agreement of vLLM and actor.",
            ("python", "-m", "studies.gpu_report", str(folder), "--output_file", str(report)),
            files=(report,),
            needs=(pocket.metrics_file(ft_run), pocket.metrics_file(cobalt_run)),
            shown=True,
        ),
    )
