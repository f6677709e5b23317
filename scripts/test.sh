#!/usr/bin/env bash
# Set up and run every check: ruff, mypy, unit tests, then the tests with the real sandbox, Ray Serve and vLLM.
#   scripts/test.sh           everything
#   scripts/test.sh --fast    without Ray, vLLM and sandboxes
# Further arguments go to pytest.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

fast=no
if [ "${1:-}" = --fast ]; then
  fast=yes
  shift
fi
bash scripts/setup.sh --with api
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1
ruff check .
ruff format --check .
mypy
if [ "$fast" = yes ]; then
  exec pytest -m "not services and not sandbox and not slow" -n "$(nproc)" --dist worksteal --timeout 120 "$@"
fi
exec pytest --timeout 900 "$@"
