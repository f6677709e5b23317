"""`python -m cobalt.judge`: the command is `cobalt.commands.judge`."""

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.judge", program="python -m cobalt.judge")
