"""Make public tests impossible: `cobalt.hacking.perturbation:perturb`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.hacking.perturbation:perturb")
