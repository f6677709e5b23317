"""`python -m cobalt.stage MODULE:FUNCTION [flags]` runs any stage, also one of your own."""

import sys

from cobalt.stage.entry import run_command

if __name__ == "__main__":
    if len(sys.argv) < 2 or ":" not in sys.argv[1]:
        sys.exit("usage: python -m cobalt.stage MODULE:FUNCTION [flags], such as cobalt.datasets.mbpp:mbpp --help")
    run_command(sys.argv[1], sys.argv[2:], program=f"python -m cobalt.stage {sys.argv[1]}")
