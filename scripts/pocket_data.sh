#!/usr/bin/env bash
# Make Cobalt's training data on the pocket world. The seed model writes three-turn trajectories for the training and the
# development problems. The trajectories are judged on hidden tests, selected, cut into contextual prompts and written as
# veRL's rows (parquet). The single-turn rows of the same problems are written as well.
#   scripts/pocket_data.sh [--list] [OUTPUT_DIR [SEED]]   (default: runs/pocket_data 0; SEED decides the world and the samples)
# Running the script again continues where it stopped. --list shows the steps and which of them are done. The steps are in
# studies/pocket_data.py.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
bash scripts/setup.sh
exec .venv/bin/python -m studies.pocket_data "$@"
