"""Turn HumanEval, HumanEval+ or MBPP+ into problems: `cobalt.commands.preproc_humaneval`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.preproc_humaneval")
