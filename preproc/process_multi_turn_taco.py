"""Turn trajectories into contextual prompts: `cobalt.commands.process_multi_turn_taco`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.process_multi_turn_taco")
