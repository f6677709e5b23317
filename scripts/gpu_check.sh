#!/usr/bin/env bash
# Check this project on a machine with a GPU: run the whole method on one GPU in a quarter of an hour, and write what was
# seen to a page: versions, seconds and tokens per second by phase, memory, and how far vLLM's probabilities
# are from the actor's.
#   scripts/gpu_check.sh [--model MODEL] [OUTPUT_DIR [SEED]]     (default: the pocket world's seed model, runs/gpu_smoke 0)
# MODEL is a folder or a hub name, such as Qwen/Qwen3-0.6B; its default folder is runs/gpu_smoke_NAME, such as
# runs/gpu_smoke_Qwen3-0.6B. The page is docs/gpu_report.md, for a MODEL docs/gpu_report_NAME.md. The steps are those
# of scripts/quickstart.sh --profile gpu-smoke; running the script again continues where it stopped. Without a GPU the exit code is 2.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

model=() name=''
case "${1:-}" in
  --model) [ $# -ge 2 ] || { echo "error: --model needs a value: a folder or a hub name" >&2; exit 2; }; model=(--model "$2"); shift 2 ;;
  --model=*) model=(--model "${1#*=}"); shift ;;
esac
if [ ${#model[@]} -gt 0 ]; then name=_$(basename "${model[1]}"); fi
output=${1:-runs/gpu_smoke$name}
seed=${2:-0}
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
  echo "error: this machine has no NVIDIA GPU that nvidia-smi lists: run scripts/gpu_check.sh where there is one" >&2
  exit 2
fi

mkdir -p "$output"
samples=$output/gpu_memory.csv
first=${CUDA_VISIBLE_DEVICES:-0}
nvidia-smi -i "${first%%,*}" --query-gpu=timestamp,memory.used --format=csv,noheader,nounits -l 2 >>"$samples" &
sampler=$!
trap 'kill "$sampler" 2>/dev/null || true; wait "$sampler" 2>/dev/null || true' EXIT
bash scripts/quickstart.sh --profile gpu-smoke "${model[@]}" "$output" "$seed"
.venv/bin/python -m studies.gpu_report "$output" --memory_file "$samples" --output_file "docs/gpu_report$name.md"
