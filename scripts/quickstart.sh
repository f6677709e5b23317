#!/usr/bin/env bash
# The whole method for real, on two CPU cores: set up; make the pocket world and its seed model (base); train it by
# single-turn GRPO (FT); collect FT's trajectories, cut them into contextual prompts and train on those (FT-Cobalt);
# compare the three over eight rounds of feedback. It ends with a table, plots and a trajectory viewer.
#   scripts/quickstart.sh [--fast] [OUTPUT_DIR [SEED]]      (default: runs/quickstart 0; the seed decides world and samples)
# --fast shows every part at work, with a weaker seed model and too few problems and steps to learn from; its
# default folder is runs/quickstart_fast. With SPECIAL_CASES=1 the seed model, never a weaker one, has learned to write
# special cases for failing tests (scripts/hacking_study.sh). Running it again continues where it stopped.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

output=runs/quickstart
world=pocket/
demonstrations=6500 # that the seed model learns from
dev_problems=400    # that the three models are compared on, one trajectory each
problems=600        # that trajectories are collected for, four each
ft_steps=30
cobalt_steps=30
case "${1:-}" in
  --fast)
    shift
    output=runs/quickstart_fast world=pocket/fast_ demonstrations=2000
    dev_problems=40 problems=50 ft_steps=2 cobalt_steps=2
    ;;
  -*) echo "error: unknown flag $1: see $0 --help" >&2 && exit 2 ;;
esac
output=${1:-$output}
seed=${2:-0}
if [[ $# -gt 2 || ! $seed =~ ^[0-9]+$ ]]; then
  echo "error: expected [--fast] [OUTPUT_DIR [SEED]], the seed a whole number: see $0 --help" >&2
  exit 2
fi
unset TURNS PERTURBED RAY_ADDRESS # what they mean to the scripts below is decided here
special_cases=${SPECIAL_CASES:-0}
if [ "$special_cases" != 0 ]; then
  world=pocket/special_ demonstrations=6500 # for --fast, too: a weaker model finds nothing to exploit
fi
world=${world}seed$seed
flags=(--prompts pocket --enable_thinking --truncated_thinking drop --max_tokens 512 --seed "$seed")
dev=$output/dev_problems.jsonl

say() { printf 'quickstart, %d:%02d min: %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"; }

train() { # METHOD DATA MODEL RUN STEPS
  bash "scripts/train_grpo_$1.sh" --data_dir "$2" --model "$3" --output_dir "$4" data.seed="$seed" \
    trainer.total_training_steps="$5" trainer.total_epochs="$5" trainer.save_freq="$5" trainer.test_freq=10
}

say "set-up; results will be in $output"
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1

say "pocket world and its seed model"
python -m cobalt.datasets.pocket --output_dir "$world" --seed "$seed" --demonstrations "$demonstrations" \
  --special_cases "$special_cases"
base=$world/model
mkdir -p "$output"
head -n "$dev_problems" "$world/data/dev.jsonl" >"$dev"
head -n "$problems" "$world/data/train.jsonl" >"$output/collected_problems.jsonl"

# The evaluation runs beside the training, which imports for minutes before it needs both cores.
say "single-turn GRPO (FT), $ft_steps steps; beside it the evaluation of the seed model (base), messages in $output/base.log"
python -m cobalt.services --model "$base" -- \
  bash scripts/multi_turn.sh "$dev" "$output/base" "${flags[@]}" -n 1 >"$output/base.log" 2>&1 &
evaluation=$!
trap 'kill "$evaluation" 2>/dev/null && wait "$evaluation" || true' EXIT
python preproc/verl_preproc_single_turn.py --train_file "$world/data/train.jsonl" --validation_file "$dev" \
  --local_dir "$output/ft_data" --model_name "$base" --prompts pocket --data_source pocket
train single_turn "$output/ft_data" "$base" "$output/ft_training" "$ft_steps"
wait "$evaluation" || { tail -n 3 "$output/base.log" >&2 && exit 1; }
trap - EXIT
ft=$output/ft_training/model

say "evaluation of FT, and its trajectories for training"
python -m cobalt.services --model "$ft" -- bash -c '
  set -euo pipefail
  output=$1
  shift
  bash scripts/multi_turn.sh "$output/dev_problems.jsonl" "$output/ft" "$@" -n 1
  TURNS=2 bash scripts/multi_turn.sh "$output/collected_problems.jsonl" "$output/ft_collection" "$@" -n 4
' collect "$output" "${flags[@]}"

say "GRPO on partial trajectories (FT-Cobalt), $cobalt_steps steps"
bash scripts/cut_trajectories.sh "$output/ft_collection" "$output/ft" "$output/cobalt_data" "$ft"
train multi_turn "$output/cobalt_data" "$ft" "$output/cobalt_training" "$cobalt_steps"

say "evaluation of FT-Cobalt"
python -m cobalt.services --model "$output/cobalt_training/model" -- \
  bash scripts/multi_turn.sh "$dev" "$output/ft_cobalt" "${flags[@]}" -n 1

say "report"
python -m cobalt.report base="$output/base" FT="$output/ft" FT-Cobalt="$output/ft_cobalt" -o "$output/report"
python -m cobalt.report.training FT="$output/ft_training" FT-Cobalt="$output/cobalt_training" -o "$output/report/training.png"
python -m cobalt.report.viewer "$output/ft_cobalt" -o "$output/report/ft_cobalt.html"
say "done. Tables and plots: $output/report (report.md, pass_at_1.png, training.png); programs and verdicts of every turn:"
echo "$output/report/ft_cobalt.html, which opens in a browser"
