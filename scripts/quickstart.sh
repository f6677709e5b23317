#!/usr/bin/env bash
# The method's main loop for real, on two CPU cores: set up, make the pocket world and its seed model, let the model
# write and repair programs for the 100 development problems, judge them, and end with a table of Pass@1 by turn and a
# plot. On 2 cores it takes 12 to 15 minutes from nothing (20 on a busy machine) and 5 GiB of memory.
#   scripts/quickstart.sh [OUTPUT_DIR [SEED]]      (default: runs/quickstart 0; the seed decides world and samples)
# Running it again continues where it stopped.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
output=${1:-runs/quickstart}
seed=${2:-0}
world=pocket/seed$seed

echo "quickstart: set-up (1 to 3 min), pocket world and seed model (5 min), services and loop (5 min); results in $output"
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1
python -m cobalt.datasets.pocket --output_dir "$world" --seed "$seed"
python -m cobalt.services --model "$world/model" -- bash scripts/multi_turn.sh "$world/data/dev.jsonl" "$output" \
  --prompts pocket --enable_thinking --max_tokens 512 --seed "$seed"
echo "the plot: $output/pass_at_1.png; the table's figures: $output/evaluation.metrics.json; programs and verdicts of"
echo "every turn: $output/evaluation.jsonl. To print the table again: .venv/bin/python eval_multi_turn.py" \
  "-i $output/multi_turn.jsonl -o $output/evaluation.jsonl"
