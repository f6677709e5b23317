"""Single turn with a proprietary model: `cobalt.commands.run_single_turn_litellm`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.run_single_turn_litellm")
