#!/usr/bin/env bash
# Single turn, multi turn and hidden-test evaluation of one problem file, against the running services.
#   scripts/multi_turn.sh PROBLEMS OUTPUT_DIR [flags of both run_*_vllm.py scripts]
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
if [ $# -lt 2 ]; then
  echo "usage: scripts/multi_turn.sh PROBLEMS OUTPUT_DIR [flags]" >&2
  exit 2
fi
problems=$1
output=$2
shift 2

python run_single_turn_vllm.py --input_file "$problems" --output_file "$output/single_turn.jsonl" "$@"
python run_multi_turn_vllm.py --input_file "$output/single_turn.jsonl" --output_file "$output/multi_turn.jsonl" \
  --turns "${TURNS:-8}" "$@"
python eval_multi_turn.py --input_file "$output/multi_turn.jsonl" --output_file "$output/evaluation.jsonl" \
  --plot "$output/pass_at_1.png"
