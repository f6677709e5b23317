#!/usr/bin/env bash
# FT: single-turn GRPO on problems, on veRL, with rewards from the judge.
#   scripts/train_grpo_single_turn.sh --data_dir DIR --model MODEL --output_dir DIR [--profile pocket|cpu|gpu-1|paper] [--dry_run] [--wandb]
#                                    [key=value ...]          --help lists every flag; key=value is a setting of veRL
# Running the same command again continues from the last checkpoint. docs/training.md describes training in full.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python
exec "$python" -m cobalt.training --data problems --estimator grpo "$@"
