"""Turn problems into veRL's parquet files: `cobalt.selection.verl_rows:convert_single_turn`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.selection.verl_rows:convert_single_turn")
