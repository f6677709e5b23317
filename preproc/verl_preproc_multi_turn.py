"""Turn contextual prompts into veRL's parquet files: `cobalt.selection.verl_rows:convert_multi_turn`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.selection.verl_rows:convert_multi_turn")
