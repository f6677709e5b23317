"""Judge programs of groups on the samples of their problems: `cobalt.datasets.offline.check:check_groups`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.datasets.offline.check:check_groups")
