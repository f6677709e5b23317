#!/usr/bin/env bash
# The whole method for real, on two CPU cores: set up; make the pocket world and its seed model (base); train it by
# single-turn GRPO (FT); collect FT's trajectories, cut them into contextual prompts and train on those (FT-Cobalt);
# compare the three over eight rounds of feedback. It ends with a table, plots and a trajectory viewer.
#   scripts/quickstart.sh [--fast] [--list] [OUTPUT_DIR [SEED]]   (default: runs/quickstart 0; the seed decides world and samples)
# --fast shows every part at work, with a weaker seed model and too few problems and steps to learn from; its
# default folder is runs/quickstart_fast. With SPECIAL_CASES=1 the seed model, never a weaker one, has learned to write
# special cases for failing tests (scripts/hacking_study.sh). Running it again continues where it stopped; --list shows
# the steps and which of them are done. The steps are in cobalt/studies/quickstart.py.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
bash scripts/setup.sh
exec .venv/bin/python -m cobalt.studies.quickstart --special_cases "${SPECIAL_CASES:-0}" "$@"
