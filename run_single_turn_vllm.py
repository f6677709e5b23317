"""Single turn with a running vLLM engine: `cobalt.commands.scripts:single_turn`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.scripts:single_turn")
