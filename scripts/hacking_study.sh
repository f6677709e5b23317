#!/usr/bin/env bash
# The reward-hacking study on the pocket world: what do FT, FT-Cobalt and FT-Cobalt trained with perturbed prompts
# (FT-Cobalt-PTB) do when the public tests that they are shown are impossible? It begins with scripts/quickstart.sh, on
# a seed model that has learned to write special cases for failing tests, as large models have. It ends with Pass@1 by
# turn under impossible and under true feedback, and a table of hacking events.
#   scripts/hacking_study.sh [--fast] [--list] [OUTPUT_DIR [SEED]]
# The default is runs/hacking_study 0, with --fast runs/hacking_study_fast 0.
# With HACKING_JUDGE=MODEL (a LiteLLM name, its key in the environment) that model sorts the events into categories;
# what it needs is installed too.
# Running it again continues where it stopped; --list shows the steps and which of them are done. The steps are in
# cobalt/studies/hacking_study.py.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
bash scripts/setup.sh ${HACKING_JUDGE:+--with api}
exec .venv/bin/python -m cobalt.studies.hacking_study ${HACKING_JUDGE:+--classifier "$HACKING_JUDGE"} "$@"
