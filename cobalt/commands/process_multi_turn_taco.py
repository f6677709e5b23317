"""Turn trajectories into contextual prompts: the flags and the work of `preproc/process_multi_turn_taco.py`."""

import asyncio
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from cobalt.episode import TemplateThinking
from cobalt.stage.serve_state import Services


@dataclass(frozen=True)
class Arguments:
    """Select trajectories of an evaluated multi-turn run and cut them into the prompts that the policy is trained on.

    Needs the Ray Serve app `evaluator` only with --perturbed_ratio.
    """

    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Result of eval_multi_turn.py (JSONL)."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Prompts (JSONL), with their manifest next to them as .run.json, which also counts what was dropped."""
    model_name: Annotated[str | None, tyro.conf.arg(name="model", aliases=["--model_name"])] = None
    """The policy, a Hugging Face id or a folder; its chat template decides how long a prompt is. Default: the model of
    the Hub that wrote the trajectories, or Qwen/Qwen3-8B (paper) where no manifest says which; a message names it."""
    chat_template_thinking: TemplateThinking = "default"
    """The chat template's switch enable_thinking, as in collection: on, off, or default (not passed)."""
    num_turns: int = 3
    """Turns of each trajectory to read; later ones are left out."""
    max_trajectories: int = 4
    """Maximum number of trajectories of one problem."""
    max_prompt_tokens: Annotated[int, tyro.conf.arg(aliases=["--max_prompt_length"])] = 10_000
    """Longest prompt, in tokens."""
    solved_rule: Literal["paper", "off"] = "paper"
    """paper: the authors' rule, which drops right-wrong-right trajectories (its index is off by one). off: no rule."""
    is_test: bool = False
    """Make a test set: the one trajectory of each problem that changes least."""
    authors_selection: bool = False
    """As the authors' script: scores are over all turns in the file, compared in floating point, and a problem is too
    easy if the single-turn run passed everything (field `exec_results`)."""
    perturbed_ratio: float = 0.0
    """Prompts with impossible feedback to add for each partial trajectory, 0 to 1 (the paper's ratio is not known)."""
    perturbed_file: Path | None = None
    """Result of run_perturbation.py on the same problems; needed where the trajectories do not have its fields."""
    prompts: str = "paper"
    """Prompt set that the trajectories were collected with; the impossible feedback is worded by it."""
    seed: int = 42
    """Seed of the order and of the choice of perturbed prompts."""

    def services(self) -> Services:
        """The services that the flags need: perturbed prompts are judged."""
        return "judge" if self.perturbed_ratio > 0 else "none"


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import quoted, say_summary
    from cobalt.episode.token_count import recorded_policy
    from cobalt.judge import ServeJudge
    from cobalt.selection.processing import ProcessingSettings, process_trajectories

    model = arguments.model_name or recorded_policy(arguments.input_file)
    settings = ProcessingSettings(**vars(arguments) | {"model_name": model})
    summary = asyncio.run(process_trajectories(settings, ServeJudge()))
    result = quoted(arguments.output_file)
    train, validation = ("FILE", result) if arguments.is_test else (result, "FILE")
    other = "the training problems, without --is_test" if arguments.is_test else "other problems, with --is_test"
    say_summary(
        summary,
        f"Contextual prompts: {arguments.output_file}",
        str(arguments.output_file),
        f"python preproc/verl_preproc_multi_turn.py --train_file {train} --validation_file {validation} -o ROWS"
        f" --model {shlex.quote(model)}, where FILE has prompts of {other}",
    )
    return 0
