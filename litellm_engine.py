"""Check a proprietary model; `cobalt.commands.litellm_engine` has the flags and the work."""

from cobalt.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.litellm_engine")
