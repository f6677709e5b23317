#!/usr/bin/env bash
# Cobalt: single-step GRPO on partial trajectories, on veRL with the judge beside it.
#   scripts/train_grpo_multi_turn.sh --data_dir DIR --model MODEL --output_dir DIR [--profile pocket|paper] [--dry_run] [--wandb]
#                                    [key=value ...]          every flag: --help; key=value is a setting of veRL
# The same command again goes on from the last checkpoint; docs/training.md says the rest.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python
exec "$python" -m cobalt.training --data partial_trajectories --estimator grpo "$@"
