#!/usr/bin/env bash
# Set up and run every check: ruff, mypy, the collection of the long tests, unit tests, and then the tests with the real
# sandbox, Ray Serve and vLLM.
#   scripts/test.sh           everything
#   scripts/test.sh --fast    without Ray, vLLM, sandboxes and slow tests
# Further arguments are passed to pytest. A check that fails stops none of the others.
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
failed_checks=
checks=("ruff check ." "ruff format --check ." mypy)
[ "$fast" = yes ] || checks+=("pytest --collect-only -qqq -W ignore tests/long") # they import much of tests/
for check in "${checks[@]}"; do
  $check || failed_checks+=${failed_checks:+, }$check
done
echo "set-up and checks: $SECONDS s"

# Tests without services share nothing but the machine, and run side by side; of the others, which start Ray and vLLM, no
# more than two files at a time.
beside="not services"
[ "$fast" = no ] || beside="$beside and not sandbox and not slow"
first=0 second=5 # pytest's 5: no test was chosen
cores=$(env -u OMP_NUM_THREADS nproc) # nproc counts no more than this variable says
export OMP_NUM_THREADS=1              # threads of several tests on the same cores wait for each other
# One more than there are cores, because many of them wait for processes.
pytest -rfEs -m "$beside" -n "$((cores + 1))" --dist worksteal --timeout 300 --durations 10 "$@" || first=$?
[ "$first" != 4 ] || exit 4 # pytest's, too: its arguments are wrong
if [ "$fast" = no ] && [ "$first" != 2 ]; then # interrupted, or tests that cannot be collected
  second=0
  # Ray gives its workers a low priority, with which they would get almost no time beside another test.
  RAY_worker_niceness=0 pytest -rfEs -m services -n "$((cores > 1 ? 2 : 1))" --dist loadfile --no-loadscope-reorder \
    --timeout 900 --durations 10 "$@" || second=$?
fi

[ -z "$failed_checks" ] || echo "failed checks: $failed_checks"
for status in "$first" "$second"; do [ "$status" = 0 ] || [ "$status" = 5 ] || exit "$status"; done
[ -z "$failed_checks" ] || exit 1
[ "$first" = 0 ] || [ "$second" = 0 ] || exit 5
