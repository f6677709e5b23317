"""Turn MBPP into problems: `cobalt.datasets.mbpp:mbpp`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.datasets.mbpp:mbpp")
