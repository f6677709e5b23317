"""Turn TACO-verified into problems: `cobalt.datasets.taco:taco`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.datasets.taco:taco")
