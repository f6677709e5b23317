#!/usr/bin/env bash
# Check this project on a machine with a GPU: run the whole method on one GPU, or on N, in a quarter of an hour, and write what was
# seen to a page: versions, seconds and tokens per second by phase, memory, and how far vLLM's probabilities
# are from the actor's.
#   scripts/gpu_check.sh [--model MODEL] [--gpus N] [OUTPUT_DIR [SEED]]   (default: the pocket world's seed model, 1, runs/gpu_smoke 0)
# MODEL is a folder or a hub name, such as Qwen/Qwen3-0.6B; its default folder is runs/gpu_smoke_NAME, such as
# runs/gpu_smoke_Qwen3-0.6B. With N above 1, training shards the policy over N GPUs, with an engine on each: NCCL, several
# engines and the balance of their work are then checked, too. The page is docs/gpu_report.md, for a MODEL
# docs/gpu_report_NAME.md, for several GPUs docs/gpu_report_N_gpus.md. The exit code is 1 if vLLM's probabilities are so far from
# the actor's that it does not sample from the policy that is trained. The steps are those
# of scripts/quickstart.sh --profile gpu-smoke; running the script again continues where it stopped. Without a GPU the exit code is 2.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

flags=() name='' gpus=1
while [[ ${1:-} == --* ]]; do
  flag=${1%%=*}
  case $flag in --model | --gpus) ;; *) echo "error: there is no flag $flag: see scripts/gpu_check.sh --help" >&2; exit 2 ;; esac
  if [[ $1 == *=* ]]; then value=${1#*=}; shift
  else [ $# -ge 2 ] || { echo "error: $flag needs a value" >&2; exit 2; }; value=$2; shift 2; fi
  flags+=("$flag" "$value")
  if [ "$flag" = --gpus ]; then gpus=$value; else name=_$(basename "$value"); fi
done
case $gpus in '' | *[!0-9]* | 0) echo "error: --gpus $gpus: give a number of 1 or more" >&2; exit 2 ;; esac
if [ "$gpus" -gt 1 ]; then name+=_${gpus}_gpus; fi
output=${1:-runs/gpu_smoke$name}
seed=${2:-0}
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
  echo "error: this machine has no NVIDIA GPU that nvidia-smi lists: run scripts/gpu_check.sh where there is one" >&2
  exit 2
fi

mkdir -p "$output"
samples=$output/gpu_memory.csv
watched=${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((gpus - 1)))}
nvidia-smi -i "$(cut -d, -f "1-$gpus" <<<"$watched")" --query-gpu=timestamp,memory.used --format=csv,noheader,nounits -l 2 >>"$samples" &
sampler=$!
trap 'kill "$sampler" 2>/dev/null || true; wait "$sampler" 2>/dev/null || true' EXIT
bash scripts/quickstart.sh --profile gpu-smoke "${flags[@]}" "$output" "$seed"
.venv/bin/python -m studies.gpu_report "$output" --memory_file "$samples" --output_file "docs/gpu_report$name.md"
