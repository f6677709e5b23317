"""Turn problems into veRL's parquet files: the flags and the work of `preproc/verl_preproc_single_turn.py`."""

import shlex
from dataclasses import dataclass

from cobalt.commands.verl_flags import VerlRowsFlags
from cobalt.episode import TruncatedThinking


@dataclass(frozen=True, kw_only=True)
class Arguments(VerlRowsFlags):
    """Write one training row for each problem, for single-turn GRPO (the paper's FT models).

    The inputs are problems. Writes train.parquet and validation.parquet, with the columns data_source, prompt, ability,
    reward_model and extra_info. No problem may be in both files.
    """

    max_prompt_length: int = 2_048
    """Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted."""
    prompts: str | None = None
    """Prompt set that words the problems: paper (the default), pocket, program, or a folder. Refused if problems have
    the field instruction in other words."""
    episodes: bool = False
    """Make rows from which online multi-turn training goes on (docs/online.md): feedback comes from the public tests,
    in the words of the prompt set."""
    enable_thinking: bool = False
    """With episodes: show later turns only the answer of each response, its first 6,000 characters, as the flag of
    run_multi_turn_vllm.py does."""
    truncated_thinking: TruncatedThinking = "keep"
    """With episodes and enable_thinking, what later turns see of a response that was cut off inside its thinking."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import quoted, say_summary
    from cobalt.episode.token_count import recorded_policy
    from cobalt.selection.verl_rows import EpisodeRules, VerlRowsSettings, convert_single_turn

    model = arguments.model_name or recorded_policy(arguments.train_file)
    flags = vars(arguments) | {"model_name": model}
    prompts, episodes = flags.pop("prompts"), flags.pop("episodes")
    rules = EpisodeRules(flags.pop("enable_thinking"), flags.pop("truncated_thinking"))
    summary = convert_single_turn(VerlRowsSettings(**flags), prompts, rules if episodes else None)
    data = "episodes --rollout multi_turn" if episodes else "problems"
    say_summary(
        summary,
        f"veRL rows: {arguments.local_dir}",
        f"{arguments.local_dir}/train.parquet and validation.parquet",
        f"cobalt train --data {data} --data_dir {quoted(arguments.local_dir)} --model {shlex.quote(model)} -o RUN",
    )
    return 0
