"""Turn APPS or APPS+ into problems: `cobalt.datasets.apps:apps`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.datasets.apps:apps")
