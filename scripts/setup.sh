#!/usr/bin/env bash
# Make .venv with one profile's exact packages, and install bubblewrap. Safe to run again: what is there is kept.
#   scripts/setup.sh [--profile cpu|gpu|eval]      (default: cpu)
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."

fail() {
  echo "error: $*" >&2
  exit 2
}

profile=cpu
while [ $# -gt 0 ]; do
  case $1 in
    --profile) [ $# -ge 2 ] || fail "--profile needs a value: cpu, gpu or eval"; profile=$2; shift 2 ;;
    --profile=*) profile=${1#*=}; shift ;;
    *) fail "unknown argument '$1'; usage: scripts/setup.sh [--profile cpu|gpu|eval]" ;;
  esac
done
lock=requirements/$profile.lock
[ -f "$lock" ] || fail "unknown profile '$profile': give cpu, gpu or eval"

find_python() {
  local candidate
  for candidate in python3.11 python3 python; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "Python 3.11 with its venv module was not found; install it (Debian: apt-get install python3.11-venv)"
}

install_bubblewrap() {
  command -v bwrap >/dev/null && return
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "bubblewrap is missing; install it (Debian: sudo apt-get install bubblewrap)"
    as_root=(sudo -n)
  fi
  command -v apt-get >/dev/null || fail "bubblewrap is missing; install it with this system's package manager"
  echo "setup: installing bubblewrap"
  "${as_root[@]}" apt-get update -qq && "${as_root[@]}" apt-get install -y -qq bubblewrap >/dev/null ||
    fail "bubblewrap could not be installed; install it by hand (Debian: apt-get install bubblewrap)"
}

# The registry's torch is a CUDA build of several GB. pip finds the CPU build where it is configured to; elsewhere it
# comes from PyTorch's own CPU index, which uv knows by name.
install_cpu_torch() {
  local version=2.13.0
  .venv/bin/python - "$version" <<'PYTHON' && return
import importlib.metadata, sys
try:
    sys.exit(importlib.metadata.version("torch") != sys.argv[1] + "+cpu")
except importlib.metadata.PackageNotFoundError:
    sys.exit(1)
PYTHON
  echo "setup: installing torch $version (CPU build)"
  .venv/bin/python -m pip install --quiet --no-deps "torch==$version+cpu" 2>/dev/null ||
    .venv/bin/uv pip install --quiet --no-deps --torch-backend cpu "torch==$version" ||
    fail "no CPU build of torch $version: neither pip nor PyTorch's CPU index has it"
}

state="$(sha256sum "$lock" pyproject.toml scripts/setup.sh | sha256sum | cut -c1-64)"
install_bubblewrap
if [ "$(cat .venv/.cobalt-setup 2>/dev/null)" = "$state" ]; then
  echo "setup: .venv holds profile $profile"
  exit 0
fi
if [ ! -x .venv/bin/python ]; then
  python=$(find_python)
  "$python" -m venv .venv
fi
[ -x .venv/bin/uv ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
export UV_LINK_MODE=copy
echo "setup: installing profile $profile ($(wc -l < "$lock") packages)"
case $profile in
  cpu)
    .venv/bin/uv pip install --quiet --no-deps --requirements "$lock"
    # Packages of another set-up that break the CPU build of torch.
    .venv/bin/uv pip uninstall --quiet torchvision torchaudio torchcodec 2>/dev/null || true
    install_cpu_torch
    ;;
  gpu)
    # flash-attn compiles against the torch that is installed, so it comes last.
    .venv/bin/uv pip install --quiet --no-deps --requirements <(grep -v '^flash-attn==' "$lock")
    .venv/bin/uv pip install --quiet --no-deps --no-build-isolation "$(grep '^flash-attn==' "$lock")"
    ;;
  eval)
    .venv/bin/uv pip install --quiet --no-deps --requirements "$lock"
    ;;
esac
.venv/bin/uv pip install --quiet --no-deps --editable .
echo "$state" > .venv/.cobalt-setup
echo "setup: done"
