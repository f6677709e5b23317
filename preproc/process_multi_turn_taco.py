"""Turn trajectories into contextual prompts: `cobalt.selection.processing:select_prompts`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.selection.processing:select_prompts")
