"""Turn Project CodeNet into groups for offline training: `cobalt.datasets.codenet:codenet_groups`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.datasets.codenet:codenet_groups")
