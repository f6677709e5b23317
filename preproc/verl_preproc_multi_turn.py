"""Turn contextual prompts into veRL's parquet files: `cobalt.commands.verl_preproc_multi_turn`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.verl_preproc_multi_turn")
