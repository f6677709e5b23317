"""Check a proprietary model: `cobalt.commands.litellm_engine`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.litellm_engine")
