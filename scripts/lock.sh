#!/usr/bin/env bash
# Resolve the profiles of pyproject.toml into exact locks (requirements/*.lock). Run it after changing a dependency.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
uv=.venv/bin/uv

compile() {  # compile PROFILE EXTRA-FLAGS...
  local profile=$1
  shift
  "$uv" pip compile pyproject.toml --quiet --extra "$profile" --extra dev --python-version 3.11 \
    --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --output-file "requirements/$profile.lock" "$@"
  echo "requirements/$profile.lock: $(wc -l < "requirements/$profile.lock") packages"
}

compile cpu requirements/torch.in --override requirements/overrides.txt
compile eval
compile gpu
