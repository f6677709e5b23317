"""The whole method on a GPU or several in a quarter of an hour (`quickstart --profile gpu-smoke`, `gpu_check.sh`).

Collection, cutting, FT, Cobalt and evaluation run with the GPU's kernels, on the pocket world's problems. The sizes are
so small that nothing is learned; what is shown is that everything runs, how many tokens a second each phase makes, and
how far vLLM's probabilities are from the actor's. The configuration of both training runs is
`cobalt_verl/config/scale/gpu-smoke.yaml`.
"""

import shlex
from pathlib import Path

from cobalt.stage.errors import UserError
from studies.lines import VALIDATION_PROMPTS, Lines, length, problems
from studies.plan import Study

PROFILE = "gpu-smoke"

_DEMONSTRATIONS = 2500  # fewer, and hardly any program of the seed model is right
_DEV_PROBLEMS = 32
_COLLECTION_PROBLEMS = 64
_SAMPLES = 4
_STEPS = 4
_LONGEST_PROMPT = 4096  # as in the profile


def study(folder: Path | None, seed: int, model: str | None, gpus: int = 1) -> Study:
    """The study that the flags of `studies.quickstart` of these names ask for.

    The default folder is runs/gpu_smoke, with the name of a given model at its end. The policy is sharded over the GPUs
    of both training runs, and each has an engine. Raises UserError if the model's folder has no model, or the number of
    GPUs is below 1.
    """
    if gpus < 1:
        raise UserError(f"--gpus {gpus}: it must be 1 or more")
    several = f"_{gpus}_gpus" if gpus > 1 else ""
    name = "gpu_smoke" if model is None else f"gpu_smoke_{Path(model).name}"
    folder = folder or Path("runs") / f"{name}{several}"
    world = Path("pocket") / f"gpu_smoke_seed{seed}"
    local = model is not None and Path(model).is_dir()
    base = world / "model" if model is None else Path(model) if local else folder / "base_model"
    if local and not (base / "config.json").is_file():
        raise UserError(f"--model {model} is not a model's folder, because it has no config.json")
    lines = Lines(seed, inputs=(base,) if local else ())
    if model is None:
        lines.world(world, f"--demonstrations {_DEMONSTRATIONS}")
    else:
        line = "python -m cobalt.pocket --output_dir {world} --seed {seed} --problems_only"
        made = (problems(world, split) for split in ("train", "dev", "test"))
        lines.add("pocket_problems", "Make the problems of the pocket world.", line, *made, world=world)
    if model is not None and not local:
        line = "env HF_HUB_OFFLINE=0 hf download {model_name} --local-dir {base}"
        lines.add("base_model", f"Download {model} (base).", line, base, model_name=model, base=base)
    report = folder / "gpu_report.md"
    _add_method(lines, folder, world, base, "" if gpus == 1 else f"trainer.n_gpus_per_node={gpus}")
    line = "python -m studies.gpu_report {folder} --output_file {report}"
    purpose = "Report versions, times, memory, and the agreement of vLLM and actor."
    lines.add("gpu_report", purpose, line, report, shown=True, folder=folder, report=report)
    flags = ["--profile", PROFILE, *(["--model", model] if model else []), *(["--gpus", str(gpus)] if gpus > 1 else [])]
    return Study(
        "gpu smoke",
        folder,
        {"seed": seed, "profile": PROFILE, "model": model} | ({"gpus": gpus} if gpus > 1 else {}),
        tuple(lines.steps),
        shlex.join(["bash", "scripts/quickstart.sh", *flags, str(folder), str(seed)]),
        f"done. Tokens a second by phase, memory, and the agreement of vLLM and actor: {report}",
        inputs=(base,) if local else (),
        made_by="the training or the download of that model",
    )


def _add_method(lines: Lines, folder: Path, world: Path, base: Path, settings: str) -> None:
    """The steps between the base model and the report; `settings` are further ones of both training runs."""
    dev, collected = folder / "dev_problems.jsonl", folder / "collected_problems.jsonl"
    ft, cobalt = folder / "ft_training" / "model", folder / "cobalt_training" / "model"
    prompts, validation = folder / "prompts.jsonl", folder / VALIDATION_PROMPTS
    # A small model of the hub thinks for longer than the profile's responses are.
    thinking = "" if base == world / "model" else "--chat_template_thinking off"
    settings = f"{length(_STEPS)} {settings}"
    settings += " +data.apply_chat_template_kwargs.enable_thinking=false" if thinking else ""
    rows, sampling = f"--max_prompt_length {_LONGEST_PROMPT} {thinking}", f"--turns 2 -n {_SAMPLES} {thinking}"

    lines.head("dev_problems", "the problems for evaluation", _DEV_PROBLEMS, problems(world, "dev"), dev)
    train = problems(world, "train")
    lines.head("collected_problems", "the problems for collection", _COLLECTION_PROBLEMS, train, collected)
    lines.write("base_evaluation", "Evaluate the base model.", dev, folder / "base_evaluation", base, sampling)
    lines.rows("ft_rows", "single", train, dev, folder / "ft_data", base, f"--prompts pocket {rows}")
    purpose, data = f"Train the base model by single-turn GRPO, {_STEPS} steps (FT).", folder / "ft_data"
    lines.train("ft_training", purpose, "grpo_single_turn", data, base, ft.parent, settings, profile=PROFILE)
    lines.write("ft_evaluation", "Evaluate FT.", dev, folder / "ft_evaluation", ft, sampling)
    purpose, run = "Collect FT's trajectories for training.", folder / "ft_collection"
    lines.write("ft_collection", purpose, collected, run, ft, sampling)
    lines.prompts("prompts", run, prompts, ft, f"--prompts pocket {thinking}")
    flags = f"--prompts pocket --is_test {thinking}"
    lines.prompts("validation_prompts", folder / "ft_evaluation", validation, ft, flags)
    lines.rows("cobalt_rows", "multi", prompts, validation, folder / "cobalt_data", ft, rows)
    purpose, data = f"Train FT by GRPO on partial trajectories, {_STEPS} steps (FT-Cobalt).", folder / "cobalt_data"
    lines.train("cobalt_training", purpose, "grpo_multi_turn", data, ft, cobalt.parent, settings, profile=PROFILE)
    lines.write("cobalt_evaluation", "Evaluate FT-Cobalt.", dev, folder / "cobalt_evaluation", cobalt, sampling)
