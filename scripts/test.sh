#!/usr/bin/env bash
# Set up and run every check: ruff, mypy, unit tests, and then the tests with the real sandbox, Ray Serve and vLLM.
#   scripts/test.sh           everything
#   scripts/test.sh --fast    without Ray, vLLM, sandboxes and slow tests
# Further arguments are passed to pytest.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

fast=no
if [ "${1:-}" = --fast ]; then
  fast=yes
  shift
fi
unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the same packages
# The libraries of docs/recipes are locked for the profile cpu alone.
case $(head -n 1 .venv/.cobalt-setup 2>/dev/null || true) in *' gpu'* | *' eval'*) extra=api ;; *) extra=recipes ;; esac
bash scripts/setup.sh --with "$extra"
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1
ruff check .
ruff format --check .
mypy
# Tests without services share nothing but the machine, and run side by side; the others have it to themselves.
alone="services"
beside="not services"
[ "$fast" = no ] || beside="$beside and not sandbox and not slow"
status=0
# One more than there are cores, because many of them wait for processes; one thread for each, because threads of several
# tests on the same cores wait for each other.
OMP_NUM_THREADS=1 pytest -m "$beside" -n "$(($(nproc) + 1))" --dist worksteal --timeout 300 "$@" || status=$?
if [ "$fast" = no ] && { [ "$status" = 0 ] || [ "$status" = 5 ]; }; then # 5: no test was chosen
  none=$status status=0
  pytest -m "$alone" --timeout 900 --durations 12 "$@" || status=$?
  if [ "$status" = 5 ] && [ "$none" = 0 ]; then status=0; fi
fi
exit "$status"
