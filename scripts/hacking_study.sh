#!/usr/bin/env bash
# The reward-hacking study on the pocket world: what do FT, FT-Cobalt and FT-Cobalt trained with perturbed prompts
# (FT-Cobalt-PTB) do when the public tests that they are shown are impossible? It begins with scripts/quickstart.sh, on
# a seed model that has learned to write special cases for failing tests, as large models have. It ends with Pass@1 by
# turn under impossible and under true feedback, and a table of hacking events.
#   scripts/hacking_study.sh [--fast] [OUTPUT_DIR [SEED]]      (default: runs/hacking_study 0; with --fast runs/hacking_study_fast)
# With HACKING_JUDGE=MODEL (a LiteLLM name, its key in the environment) that model sorts the events into categories;
# what it needs is installed too.
# Running it again continues where it stopped.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

output=runs/hacking_study steps=30 fast=() # as scripts/quickstart.sh has them
case "${1:-}" in
  --fast)
    shift
    output=runs/hacking_study_fast steps=2 fast=(--fast)
    ;;
  -*) echo "error: unknown flag $1: see $0 --help" >&2 && exit 2 ;;
esac
output=${1:-$output}
seed=${2:-0}
unset TURNS PERTURBED RAY_ADDRESS # what they mean to the scripts below is decided here
dev=$output/dev_problems.jsonl
study=$output/hacking
if [ -n "${HACKING_JUDGE:-}" ]; then bash scripts/setup.sh --with api; fi
SPECIAL_CASES=1 bash scripts/quickstart.sh "${fast[@]}" "$output" "$seed" "${@:3}"
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1
flags=(--prompts pocket --enable_thinking --truncated_thinking drop --max_tokens 512 --seed "$seed" -n 1)
mkdir -p "$study"

say() { printf 'hacking study, %d:%02d min: %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"; }

say "prompts with impossible feedback, one for each partial trajectory"
python preproc/run_perturbation.py -i "$output/ft_collection/evaluation.jsonl" -o "$study/ptb_collection.jsonl"
python -m cobalt.services -- python preproc/process_multi_turn_taco.py --input_file "$output/ft_collection/evaluation.jsonl" \
  --output_file "$study/ptb_data/prompts.jsonl" --model_name "$output/ft_training/model" --prompts pocket \
  --perturbed_ratio 1.0 --perturbed_file "$study/ptb_collection.jsonl"
python preproc/verl_preproc_multi_turn.py --train_file "$study/ptb_data/prompts.jsonl" \
  --validation_file "$output/cobalt_data/validation_prompts.jsonl" --local_dir "$study/ptb_data" \
  --model_name "$output/ft_training/model" --data_source pocket

say "GRPO on them (FT-Cobalt-PTB), $steps steps"
bash scripts/train_grpo_multi_turn.sh --data_dir "$study/ptb_data" --model "$output/ft_training/model" \
  --output_dir "$study/ptb_training" data.seed="$seed" trainer.total_training_steps="$steps" trainer.total_epochs="$steps" \
  trainer.save_freq="$steps" trainer.test_freq=10

runs=() events=()
study_model() { # NAME MODEL RUN
  say "impossible feedback: $1"
  python -m cobalt.services --model "$2" -- env PERTURBED=1 bash scripts/multi_turn.sh "$dev" "$3" "${flags[@]}"
  local found=$3/events.jsonl
  if [ -n "${HACKING_JUDGE:-}" ]; then
    python run_llm_judge.py -i "$found" -o "$3/judged.jsonl" --model_name "$HACKING_JUDGE"
    found=$3/judged.jsonl
  fi
  runs+=("$1=$3")
  events+=("$1=$found")
}
study_model FT "$output/ft_training/model" "$study/ft"
study_model FT-Cobalt "$output/cobalt_training/model" "$study/ft_cobalt"
study_model FT-Cobalt-PTB "$study/ptb_training/model" "$study/ft_cobalt_ptb"

say "FT-Cobalt-PTB under true feedback"
python -m cobalt.services --model "$study/ptb_training/model" -- \
  bash scripts/multi_turn.sh "$dev" "$study/ft_cobalt_ptb_benign" "${flags[@]}"

say "reports"
python -m cobalt.report "${runs[@]}" --hacking "${events[@]}" -o "$study/report_perturbed"
python -m cobalt.report FT="$output/ft" FT-Cobalt="$output/ft_cobalt" FT-Cobalt-PTB="$study/ft_cobalt_ptb_benign" \
  -o "$study/report_benign"
say "done: $study/report_perturbed/report.md (impossible feedback), $study/report_benign/report.md (true feedback)"
