#!/usr/bin/env bash
# GRPO-MT: online multi-turn GRPO on problems, on veRL, with rewards from the judge.
#   scripts/train_grpo_mt.sh --data_dir DIR --model MODEL --output_dir DIR [--profile pocket|cpu|gpu-1|paper] [--dry_run] [--wandb]
#                            [key=value ...]          --help lists every flag; key=value is a setting of veRL
# The data are rows of preproc/verl_preproc_single_turn.py --episodes. Running the same command again continues from the last
# checkpoint. docs/training.md describes the method and training in full.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python
exec "$python" -m cobalt.training --data episodes --rollout multi_turn --estimator grpo "$@"
