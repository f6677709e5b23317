#!/usr/bin/env bash
# Cobalt's data on the pocket world, from nothing to parquet: the seed model writes three-turn trajectories for the
# training and the development problems, they are judged on hidden tests, selected, cut into contextual prompts and
# written as veRL's rows. Beside them the single-turn rows of the same problems.
#   scripts/pocket_data.sh [OUTPUT_DIR [SEED]]      (default: runs/pocket_data 0; the seed decides world and samples)
# Running it again continues where it stopped.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
output=${1:-runs/pocket_data}
seed=${2:-0}
world=pocket/seed$seed
model=$world/model

bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1
python -m cobalt.datasets.pocket --output_dir "$world" --seed "$seed"

# Two turns after the first one, as the paper collects.
python -m cobalt.services --model "$model" -- bash -c '
  set -euo pipefail
  for split in train dev; do
    TURNS=2 bash scripts/multi_turn.sh "$1/data/$split.jsonl" "$2/$split" \
      --prompts pocket --enable_thinking --truncated_thinking drop --max_tokens 512 --seed "$3"
  done' collect "$world" "$output" "$seed"

bash scripts/cut_trajectories.sh "$output/train" "$output/dev" "$output/verl_multi_turn" "$model"
python preproc/verl_preproc_single_turn.py --train_file "$world/data/train.jsonl" \
  --validation_file "$world/data/dev.jsonl" --local_dir "$output/verl_single_turn" --model_name "$model" \
  --prompts pocket --data_source pocket
echo "rows for veRL: $output/verl_multi_turn, $output/verl_single_turn"
