#!/usr/bin/env bash
# Resolve the profiles of pyproject.toml into exact locks (requirements/*.lock). Run this after changing a dependency.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
uv=.venv/bin/uv

compile() {  # compile PROFILE EXTRA-FLAGS...
  local profile=$1 lock
  shift
  # With api first: it has the narrower needs (openai below 3), and the profile alone then takes the same versions.
  for lock in "$profile+api" "$profile"; do
    "$uv" pip compile pyproject.toml --quiet --extra "$profile" --extra dev --extra docs \
      $([ "$lock" = "$profile" ] && echo --constraint "requirements/$profile+api.lock" || echo --extra api) \
      --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-header --no-annotate \
      --output-file "requirements/$lock.lock" "$@"
    echo "requirements/$lock.lock: $(wc -l < "requirements/$lock.lock") packages"
  done
}

compile cpu requirements/torch.in --override requirements/overrides.txt
compile eval
compile gpu
