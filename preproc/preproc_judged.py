"""Turn judged programs into groups for offline training: `cobalt.datasets.offline.judged:judged_groups`."""

from start import run_command

if __name__ == "__main__":
    run_command("cobalt.datasets.offline.judged:judged_groups")
