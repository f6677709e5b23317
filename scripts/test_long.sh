#!/usr/bin/env bash
# What takes minutes or hours, and is run before a release: the tests of tests/long, attacks with cgroups, every end of a
# command with its own engine, every row of the fault matrix, each target of the fuzzer for a minute, and a soak of the
# judge. scripts/test.sh has set up the environment. Arguments go to pytest.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" HF_HUB_OFFLINE=1 COBALT_LONG_TESTS=1
failed=0
pytest tests/long tests/test_judge_attacks.py tests/test_signals.py --timeout 3600 "$@" || failed=1
for target in extraction records comparison routes; do
  python tests/long/fuzz.py "$target" --minutes 1 || failed=1
done
python tests/long/soak.py direct --tests 20000 || failed=1
exit "$failed"
