"""Turn MBPP into problems; `cobalt.commands.preproc_mbpp` has the flags and the work."""

from cobalt.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.preproc_mbpp")
