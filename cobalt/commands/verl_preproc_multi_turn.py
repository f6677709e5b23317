"""Turn contextual prompts into veRL's parquet files: the flags and the work of `preproc/verl_preproc_multi_turn.py`."""

import shlex
from dataclasses import dataclass

from cobalt.commands.verl_flags import VerlRowsFlags


@dataclass(frozen=True, kw_only=True)
class Arguments(VerlRowsFlags):
    """Write one training row for each contextual prompt, for Cobalt's single-step GRPO.

    The inputs are results of process_multi_turn_taco.py, the validation file's with --is_test. Writes train.parquet and
    validation.parquet, with the columns data_source, prompt, ability, reward_model and extra_info. No problem may be in
    both files.
    """

    max_prompt_length: int = 10_240
    """Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import quoted, say_summary
    from cobalt.episode.token_count import recorded_policy
    from cobalt.selection.verl_rows import VerlRowsSettings, convert_multi_turn

    model = arguments.model_name or recorded_policy(arguments.train_file)
    summary = convert_multi_turn(VerlRowsSettings(**vars(arguments) | {"model_name": model}))
    say_summary(
        summary,
        f"veRL rows: {arguments.local_dir}",
        f"{arguments.local_dir}/train.parquet and validation.parquet",
        f"cobalt train --data partial_trajectories --data_dir {quoted(arguments.local_dir)} --model"
        f" {shlex.quote(model)} -o RUN",
    )
    return 0
