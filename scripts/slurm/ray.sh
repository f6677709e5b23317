#!/usr/bin/env bash
# Run a command on a Ray of all nodes of a Slurm job, after the check of each node (docs/cluster.md).
#   scripts/slurm/ray.sh [--interface NAME] [flags of `python -m cobalt.preflight`] -- COMMAND [ARGUMENT ...]
# The sbatch files call it, on the job's first node, which becomes Ray's head. The nodes of a second component of a
# heterogeneous job judge programs and do nothing else. COBALT_CONTAINER is the beginning of a command that runs another
# one in a container, such as "apptainer exec --nv cobalt.sif". The exit code is the command's, or that of the check.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac

interface='' check=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --interface) [ $# -ge 2 ] || { echo "error: --interface needs a name" >&2; exit 2; }; interface=$2; shift 2 ;;
    --interface=*) interface=${1#*=}; shift ;;
    *) check+=("$1"); shift ;;
  esac
done
[ $# -ge 2 ] || { echo "error: give the command to run after --" >&2; exit 2; }
shift
cd "$(dirname "$0")/../.."

read -r -a container <<< "${COBALT_CONTAINER:-}"
[ ${#container[@]} -gt 0 ] || export PATH="$PWD/.venv/bin:$PATH" # a container has its own
unset PYTHONPATH

mapfile -t workers < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
second=${SLURM_JOB_NODELIST_HET_GROUP_1:-} judges=()
[ -z "$second" ] || mapfile -t judges < <(scontrol show hostnames "$second")
count=$((${#workers[@]} + ${#judges[@]}))
workers=("${workers[@]:1}") # without this one
at=()
if [ $count -gt 1 ]; then
  [ -n "$interface" ] || { echo "error: a job of several nodes needs --interface (ip -br addr shows them)" >&2; exit 2; }
  at=(--interface "$interface")
  export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$interface}" GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
fi
port=$((20000 + SLURM_JOB_ID % 10000))
cluster=("${container[@]}" bash scripts/ray_cluster.sh)
cpus=(--num-cpus="$SLURM_CPUS_ON_NODE")

head='' command='' steps=()
finish() {
  # The command first, because it needs Ray to end in order.
  if [ -n "$command" ] && kill -TERM "$command" 2> /dev/null; then wait "$command" || true; fi
  # shellcheck disable=SC2086 # empty where Ray was not started
  kill -TERM "${steps[@]}" $head 2> /dev/null || true
  wait || true
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# --stay, because a container may end what a command has left running.
exec {said}< <(exec "${cluster[@]}" start "${at[@]}" --port "$port" --stay "${cpus[@]}")
head=$!
IFS= read -r started <&"$said" || exit 1
echo "$started"
address=$(sed -n 's/^Ray runs at \([^,]*\),.*/\1/p' <<< "$started")
# One step for all nodes of a component. It keeps its cores, and a node that is lost does not end it.
step=(srun --ntasks-per-node=1 --cpu-bind=none --no-kill --kill-on-bad-exit=0)
if [ ${#workers[@]} -gt 0 ]; then
  "${step[@]}" --nodes=${#workers[@]} --ntasks=${#workers[@]} --nodelist="$(IFS=,; echo "${workers[*]}")" \
    --cpus-per-task="$SLURM_CPUS_ON_NODE" "${cluster[@]}" join "$address" "${at[@]}" --stay "${cpus[@]}" &
  steps+=($!)
fi
if [ ${#judges[@]} -gt 0 ]; then
  cores=${SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1:-1}
  cores=${cores%%[!0-9]*}
  "${step[@]}" --het-group=1 --nodes=${#judges[@]} --ntasks=${#judges[@]} --cpus-per-task="$cores" \
    "${cluster[@]}" join "$address" "${at[@]}" --stay --num-cpus=0 --resources="{\"judge\": $cores}" &
  steps+=($!)
fi
export RAY_ADDRESS=$address RAY_AUTH_MODE=token
[ ${#at[@]} -gt 0 ] || export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 # on loopback
"${container[@]}" python -m cobalt.preflight --nodes "$count" "${check[@]}"
# In the background, so that a signal to this script is not kept waiting.
"${container[@]}" "$@" &
command=$!
wait "$command"
