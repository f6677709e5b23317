"""Multi turn with a running vLLM engine: `cobalt.commands.scripts:multi_turn`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.scripts:multi_turn")
