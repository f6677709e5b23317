#!/usr/bin/env bash
# Run single turn, multi turn and hidden-test evaluation on one problem file, with the running services.
#   scripts/multi_turn.sh PROBLEMS OUTPUT_DIR [--turns N] [--perturbed] [flags of both run_*_vllm.py scripts]
# --turns sets the number of rounds of feedback (default: 8). With --perturbed two of each problem's public tests are
# impossible, and the hacking events are extracted into OUTPUT_DIR/events.jsonl.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
root=$(cd "$(dirname "$0")/.." && pwd) # paths are those of the folder that the script is called from
if [ $# -lt 2 ]; then
  echo "usage: scripts/multi_turn.sh PROBLEMS OUTPUT_DIR [flags]" >&2
  exit 2
fi
problems=$1
output=$2
shift 2

turns=8 perturbed= flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --turns)
      [ $# -ge 2 ] || { echo "error: --turns needs a value, the number of rounds of feedback" >&2 && exit 2; }
      turns=$2
      shift
      ;;
    --turns=*) turns=${1#*=} ;;
    --perturbed) perturbed=yes ;;
    *) flags+=("$1") ;;
  esac
  shift
done

python "$root/run_single_turn_vllm.py" --input_file "$problems" --output_file "$output/single_turn.jsonl" "${flags[@]}"
first_turn=$output/single_turn.jsonl public_tests=benign
if [ -n "$perturbed" ]; then
  first_turn=$output/perturbed.jsonl public_tests=perturbed
  python "$root/preproc/run_perturbation.py" --input_file "$output/single_turn.jsonl" --output_file "$first_turn"
fi
python "$root/run_multi_turn_vllm.py" --input_file "$first_turn" --output_file "$output/multi_turn.jsonl" \
  --turns "$turns" --public_tests "$public_tests" "${flags[@]}"
python "$root/eval_multi_turn.py" --input_file "$output/multi_turn.jsonl" --output_file "$output/evaluation.jsonl"
if [ -n "$perturbed" ]; then
  python "$root/extract_turn_level_errors.py" --data_file "$first_turn" --input_file "$output/evaluation.jsonl" \
    --output_file "$output/events.jsonl"
fi
