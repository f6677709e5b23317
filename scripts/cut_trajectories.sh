#!/usr/bin/env bash
# Make veRL's rows from evaluated trajectories: select trajectories, cut them into contextual prompts, write parquet.
#   scripts/cut_trajectories.sh TRAIN_RUN DEV_RUN OUTPUT_DIR MODEL
# TRAIN_RUN and DEV_RUN are folders that scripts/multi_turn.sh wrote with --prompts pocket; MODEL is the policy to train.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
if [ $# != 4 ]; then
  echo "usage: scripts/cut_trajectories.sh TRAIN_RUN DEV_RUN OUTPUT_DIR MODEL" >&2
  exit 2
fi
output=$3
model=$4

python preproc/process_multi_turn_taco.py --input_file "$1/evaluation.jsonl" --output_file "$output/prompts.jsonl" \
  --model_name "$model" --prompts pocket
python preproc/process_multi_turn_taco.py --input_file "$2/evaluation.jsonl" \
  --output_file "$output/validation_prompts.jsonl" --model_name "$model" --prompts pocket --is_test
python preproc/verl_preproc_multi_turn.py --train_file "$output/prompts.jsonl" \
  --validation_file "$output/validation_prompts.jsonl" --local_dir "$output" --model_name "$model" --data_source pocket
