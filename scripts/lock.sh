#!/usr/bin/env bash
# Resolve the profiles of pyproject.toml into exact locks (requirements/*.lock), with the digests of the files that Linux on
# x86_64 installs. Run this after changing a dependency. requirements/torch-cpu.txt is written by hand.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Each line gets the digests of the package's wheels that a system of any newer C library takes, and of its source only if
# there are none: what has a wheel is never built.
add_hashes() {  # add_hashes LOCK
  "$uv" pip compile "$1" --quiet --no-deps --python-version 3.11 --python-platform x86_64-manylinux_2_40 \
    --format pylock.toml --output-file "$scratch/pylock.toml"
  .venv/bin/python - "$scratch/pylock.toml" >"$scratch/lock" <<'PYTHON'
import sys, tomllib
from pathlib import Path
for package in tomllib.loads(Path(sys.argv[1]).read_text())["packages"]:
    files = package.get("wheels") or [package["sdist"]]
    digests = sorted(f" --hash=sha256:{file['hashes']['sha256']}" for file in files)
    print(f"{package['name']}=={package['version']}", *digests, sep="")
PYTHON
  rm "$scratch/pylock.toml"
  mv "$scratch/lock" "$1"
}

compile() {  # compile NAME EXTRAS FLAGS...
  local name=$1 extra extras=() lock=requirements/$1.lock
  for extra in $2 dev docs; do extras+=(--extra "$extra"); done
  shift 2
  "$uv" pip compile pyproject.toml --quiet "${extras[@]}" --python-version 3.11 \
    --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --output-file "$lock" "$@"
  add_hashes "$lock"
  echo "$lock: $(wc -l < "$lock") packages"
}

# The largest set of a profile comes first: it has the narrowest needs (openai below 3, one version of mcp), and the smaller
# ones then take the same versions.
for_cpu=(requirements/torch.in --override requirements/overrides.txt)
compile cpu+recipes "cpu api recipes" "${for_cpu[@]}"
compile cpu+api "cpu api" --constraint requirements/cpu+recipes.lock "${for_cpu[@]}"
compile cpu "cpu" --constraint requirements/cpu+api.lock "${for_cpu[@]}"
for profile in eval gpu; do
  compile "$profile+api" "$profile api"
  compile "$profile" "$profile" --constraint "requirements/$profile+api.lock"
done
add_hashes requirements/uv.txt
