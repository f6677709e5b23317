"""Turn LiveCodeBench into problems: `cobalt.commands.preproc_lcb_test6`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.preproc_lcb_test6")
