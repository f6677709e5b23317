#!/usr/bin/env bash
# The reward-hacking study on the pocket world: what do FT, FT-Cobalt and FT-Cobalt trained with perturbed prompts
# (FT-Cobalt-PTB) do when the public tests that they see are impossible? The study starts with the steps of scripts/quickstart.sh, with
# a seed model that has learned to write special cases for failing tests, as large models have. It ends with Pass@1 by
# turn under impossible and under true feedback, and a table of hacking events.
#   scripts/hacking_study.sh [--list] [OUTPUT_DIR [SEED]]
# The default OUTPUT_DIR is runs/hacking_study; the default SEED is 0.
# Running the script again continues where it stopped. --list shows the steps and which of them are done. The steps are in
# studies/quickstart.py.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
bash scripts/setup.sh --profile cpu
exec .venv/bin/python -m studies.quickstart --hacking "$@"
