"""Turn MBPP into problems: `cobalt.commands.preproc_mbpp`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.preproc_mbpp")
