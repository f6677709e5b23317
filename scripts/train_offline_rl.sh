#!/usr/bin/env bash
# Offline RL: a policy gradient on judged responses, on veRL's engine, without sampling or judging (arXiv 2605.28409).
#   scripts/train_offline_rl.sh --data_dir DIR --model MODEL --output_dir DIR [--estimator sft|rloo|grpo|exponential]
#                               [--profile pocket|cpu|gpu-1|paper-0.5b|paper-7b] [--dry_run] [--wandb] [key=value ...]
#   --help lists every flag
# The data are groups of preproc/preproc_codenet.py or preproc/preproc_judged.py. Running the same command again continues
# from the last checkpoint. docs/offline_rl.md describes the method.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python
exec "$python" -m cobalt.training.offline "$@"
