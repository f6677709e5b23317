"""Extract hacking events: `cobalt.commands.extract_turn_level_errors`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.extract_turn_level_errors")
