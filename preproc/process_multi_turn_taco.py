"""Turn trajectories into contextual prompts; `cobalt.commands.process_multi_turn_taco` has the flags and the work."""

from cobalt.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.process_multi_turn_taco")
