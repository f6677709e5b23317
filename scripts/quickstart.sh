#!/usr/bin/env bash
# The method's main loop for real, on two CPU cores: set up, make the pocket world and its seed model, let the model
# write and repair programs for the 100 development problems, judge them, and end with a table of Pass@1 by turn and a
# plot.
#   scripts/quickstart.sh [OUTPUT_DIR [SEED]]      (default: runs/quickstart 0; the seed decides world and samples)
# Running it again continues where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-runs/quickstart}
seed=${2:-0}
world=pocket/seed$seed

bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1
python -m cobalt.datasets.pocket --output_dir "$world" --seed "$seed"
python -m cobalt.services --model "$world/model" -- bash scripts/multi_turn.sh "$world/data/dev.jsonl" "$output" \
  --prompts pocket --enable_thinking --max_tokens 512 --seed "$seed"
echo "table and plot: $output/evaluation.metrics.json, $output/pass_at_1.png"
