#!/usr/bin/env bash
# As scripts/multi_turn.sh, but the public tests that feedback comes from are perturbed, two of each problem impossible;
# and the hacking events are extracted, into events.jsonl. Against the running services.
#   scripts/perturbed_multi_turn.sh PROBLEMS OUTPUT_DIR [flags of both run_*_vllm.py scripts]
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
if [ $# -lt 2 ]; then
  echo "usage: scripts/perturbed_multi_turn.sh PROBLEMS OUTPUT_DIR [flags]" >&2
  exit 2
fi
problems=$1
output=$2
shift 2

python run_single_turn_vllm.py --input_file "$problems" --output_file "$output/single_turn.jsonl" "$@"
python preproc/run_perturbation.py --input_file "$output/single_turn.jsonl" --output_file "$output/perturbed.jsonl"
python run_multi_turn_vllm.py --input_file "$output/perturbed.jsonl" --output_file "$output/multi_turn.jsonl" \
  --turns "${TURNS:-8}" --public_tests perturbed "$@"
python eval_multi_turn.py --input_file "$output/multi_turn.jsonl" --output_file "$output/evaluation.jsonl"
python extract_turn_level_errors.py --data_file "$output/perturbed.jsonl" --input_file "$output/evaluation.jsonl" \
  --output_file "$output/events.jsonl"
