"""Turn Project CodeNet into groups for offline training; `cobalt.commands.preproc_codenet` has the flags and the work."""

from cobalt.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.preproc_codenet")
