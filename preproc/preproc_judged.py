"""Turn judged programs into groups for offline training: `cobalt.commands.preproc_judged`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.preproc_judged")
