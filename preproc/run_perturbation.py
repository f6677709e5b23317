"""Make public tests impossible; `cobalt.commands.run_perturbation` has the flags and the work."""

from cobalt.entry import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.run_perturbation")
