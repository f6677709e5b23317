#!/usr/bin/env bash
# Resolve the profiles of pyproject.toml into exact locks (requirements/*.lock). Run this after changing a dependency.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac
cd "$(dirname "$0")/.."
uv=.venv/bin/uv

compile() {  # compile NAME EXTRAS FLAGS...
  local name=$1 extra extras=()
  for extra in $2 dev docs; do extras+=(--extra "$extra"); done
  shift 2
  "$uv" pip compile pyproject.toml --quiet "${extras[@]}" --python-version 3.11 \
    --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --output-file "requirements/$name.lock" "$@"
  echo "requirements/$name.lock: $(wc -l < "requirements/$name.lock") packages"
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
