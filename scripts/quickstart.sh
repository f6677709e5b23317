#!/usr/bin/env bash
# Run the whole method on two CPU cores: set up; make the pocket world and its seed model (base); train the seed model by
# single-turn GRPO (FT); collect FT's trajectories, cut them into contextual prompts and train FT on those (FT-Cobalt);
# compare the three models over eight rounds of feedback. It ends with a table, plots and a trajectory viewer.
#   scripts/quickstart.sh [--fast] [--list] [--dry_run] [--profile gpu-smoke [--model MODEL] [--gpus N]] [OUTPUT_DIR [SEED]]
#     (default: runs/quickstart 0; SEED decides the world and the samples)
# --fast runs every part with a weaker seed model and with too few problems and steps to learn from; its default folder is
# runs/quickstart_fast. Running the script again continues where it stopped.
# --list shows the steps and which of them are done. The steps are in studies/quickstart.py.
# --profile gpu-smoke runs the whole method on one GPU in a quarter of an hour, with too few steps to learn from, on the seed
# model or on --model (a folder or hub name, such as Qwen/Qwen3-0.6B), and reports tokens per second by phase; its default
# folder is runs/gpu_smoke, with _NAME for a model. --dry_run prints the commands of all steps and checks the
# configurations of the training runs. It needs no GPU, and does not change the environment that is there.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
profile=cpu # the pocket profile trains with vLLM's build for CPUs
case " $* " in *" --profile gpu-smoke "* | *" --profile=gpu-smoke "*) profile=gpu ;; esac
set_up=(bash scripts/setup.sh --profile "$profile")
case " $* " in *" --dry_run "*) [ ! -x .venv/bin/python ] || set_up=(true) ;; esac
"${set_up[@]}"
exec .venv/bin/python -m studies.quickstart "$@"
