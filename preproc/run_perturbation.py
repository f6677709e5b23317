"""Make public tests impossible: `cobalt.commands.run_perturbation`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.commands.run_perturbation")
