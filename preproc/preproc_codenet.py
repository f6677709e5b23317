"""Turn Project CodeNet into groups for offline training: `cobalt.commands.preproc_codenet`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.preproc_codenet")
