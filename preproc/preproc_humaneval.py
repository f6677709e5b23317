"""Turn HumanEval into problems: `cobalt.datasets.humaneval:humaneval`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.datasets.humaneval:humaneval")
