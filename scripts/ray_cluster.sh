#!/usr/bin/env bash
# Start, join or stop a Ray cluster that requires Ray's token, for `serve run` and the scripts.
#   scripts/ray_cluster.sh start [options] [flags of `ray start`]            # this machine is the head
#   scripts/ray_cluster.sh join HEAD:PORT [options] [flags of `ray start`]   # this machine joins it
#   scripts/ray_cluster.sh stop                                              # ends what the script started here
# Options: --address IP or --interface NAME (where the other machines reach this one), --port PORT (of a head; 6379), and
# --stay (the script ends with Ray, as a job's scheduler needs it, and ends Ray when it gets SIGTERM).
# Of Ray's own flags, --num-cpus=0 --resources='{"judge": 64}' make a node that judges programs, on 64 cores, and does
# nothing else.
# With the default address, 127.0.0.1, all of Ray except Serve's replicas listens on loopback. With another address Ray
# listens on every interface and is protected by the token; the dashboard and Serve's HTTP stay on loopback. The token is in
# ~/.ray/auth_token; machines that join need the same file. Ray's files are in RAY_TMPDIR (TMPDIR, /tmp): in `ray` if that
# is a folder of mode 700 of this user, else in `cobalt-ray-UID/ray`.
set -euo pipefail
umask 077
case "${1:-}" in -h | --help) sed -n '/^#!/d; /^#/!q; s/^# \{0,1\}//p' "$0" && exit ;; esac

fail() {
  echo "error: $*" >&2
  exit 2
}

state=$HOME/.ray/cobalt_cluster.$(hostname)
export RAY_AUTH_MODE=token

running() {
  # Not by grep, which would find itself where the machine was lost and its new processes have the old numbers.
  [ -f "$state.pid" ] && [[ $(tr '\0' ' ' 2> /dev/null < "/proc/$(cat "$state.pid")/cmdline") == *"ray start"* ]]
}

# The processes of a session that have not ended.
living_members() {
  local path line
  for path in /proc/[0-9]*; do
    read -r line < "$path/stat" || continue
    # shellcheck disable=SC2086 # split on purpose: state, parent, group, session
    set -- "$1" ${line##*) }
    if [ "$5" = "$1" ] && [ "$2" != Z ]; then echo "${path#/proc/}"; fi
  done 2> /dev/null
}

# A folder of this user alone: Ray gives everybody write access to its own.
private() {
  [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && [[ $(stat -c %a "$1") == *00 ]]
}

make_folder() {
  export RAY_TMPDIR=${RAY_TMPDIR:-${TMPDIR:-/tmp}}
  private "$RAY_TMPDIR" && return
  RAY_TMPDIR=$RAY_TMPDIR/cobalt-ray-$(id -u)
  mkdir -m 700 "$RAY_TMPDIR" 2> /dev/null || private "$RAY_TMPDIR" ||
    fail "the folder $RAY_TMPDIR for Ray's files is not this user's alone: set RAY_TMPDIR to a folder with mode 700"
}

start() {
  ! running || fail "a cluster that this script started runs already: stop it first (scripts/ray_cluster.sh stop)"
  if [ -f "$HOME/.ray/auth_token" ]; then
    chmod 600 "$HOME/.ray/auth_token"
  fi
  : > "$state.log"
  setsid ray start --block --disable-usage-stats --temp-dir="$RAY_TMPDIR/ray" "$@" >> "$state.log" 2>&1 < /dev/null &
  echo $! > "$state.pid"
  echo "$reached_at" > "$state.address"
  # Ends with the line, or with the process.
  if ! grep -q -m 1 "Ray runtime started" < <(tail --pid=$! -n +1 -f "$state.log"); then
    rm -f "$state.pid"
    tail -n 20 "$state.log" >&2
    echo "error: Ray did not start; its messages are above" >&2
    exit 1
  fi
}

# The IPv4 address of a network interface.
address_of() {
  command -v ip > /dev/null || fail "there is no command ip here (package iproute2): give --address in place of --interface"
  local address
  address=$(ip -4 -o addr show dev "$1" 2> /dev/null | awk '{ sub("/.*", "", $4); print $4; exit }')
  [ -n "$address" ] || fail "the interface $1 has no IPv4 address on $(hostname); there are: $(ip -4 -br addr | cut -d' ' -f1 | paste -sd' ')"
  echo "$address"
}

# Read the options of this script into `address`, `port` and `stay`; the rest stays in `rest`.
read_options() {
  address='' port=6379 stay=no
  while [ $# -gt 0 ]; do
    case $1 in
      --address) [ $# -ge 2 ] || fail "--address needs an address of this machine"; address=$2; shift 2 ;;
      --address=*) address=${1#*=}; shift ;;
      --interface) [ $# -ge 2 ] || fail "--interface needs a name (ip -br addr)"; address=$(address_of "$2"); shift 2 ;;
      --interface=*) address=$(address_of "${1#*=}"); shift ;;
      --port) [ $# -ge 2 ] || fail "--port needs a number"; port=$2; shift 2 ;;
      --port=*) port=${1#*=}; shift ;;
      --stay) stay=yes; shift ;;
      *) break ;;
    esac
  done
  rest=("$@")
}

# End the Ray that this script started here.
end() {
  local pid started member current
  pid=$(cat "$state.pid")
  started=$(living_members "$pid")
  kill -TERM "$pid" 2> /dev/null || true # it may have ended by itself
  for member in $pid $started; do # the dashboard's processes end a moment after Ray's own
    timeout 30 tail --pid="$member" -f /dev/null || true
  done
  # Where Ray says which cluster this machine uses; it would go on to look for this one.
  current=$RAY_TMPDIR/ray/ray_current_cluster
  if [ -f "$current" ] && [ "$(cat "$current")" = "$(cat "$state.address")" ]; then
    rm -f "$current"
  fi
  rm -f "$state.pid" "$state.address"
}

# With --stay: live as long as Ray, and end Ray at SIGTERM.
stay() {
  [ "$stay" = yes ] || return 0
  trap true TERM INT # they interrupt `wait`
  wait "$(cat "$state.pid")" || true
  end
}

command=${1:-}
[ $# -eq 0 ] || shift
command -v ray > /dev/null || fail "there is no ray here: activate the project's environment (source .venv/bin/activate)"
mkdir -p "$HOME/.ray"
make_folder
case $command in
  start)
    read_options "$@"
    address=${address:-127.0.0.1}
    if [ -z "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" ]; then
      ray get-auth-token --generate > /dev/null 2>&1 || fail "Ray's token could not be made (ray get-auth-token --generate)"
    fi
    if [ "$address" = 127.0.0.1 ]; then
      export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 # without it Ray puts the machine's public address in its place
    fi
    # The cluster ends with its head. Ray would wait half a minute first, for others to take over what runs here.
    export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=${RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S:-0}
    reached_at=$address:$port
    start --head --node-ip-address="$address" --port="$port" --dashboard-host=127.0.0.1 "${rest[@]}"
    echo "Ray runs at $address:$port, asks for the token in ~/.ray/auth_token, and stops by: scripts/ray_cluster.sh stop"
    echo "where it is to be used: export RAY_ADDRESS=$address:$port RAY_AUTH_MODE=token" \
      "${RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER:+RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0}"
    stay
    ;;
  join)
    [ $# -ge 1 ] || fail "give the head's address: scripts/ray_cluster.sh join HEAD:PORT"
    head=$1
    shift
    [ -n "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" ] || [ -f "$HOME/.ray/auth_token" ] ||
      fail "there is no token: copy ~/.ray/auth_token from the head's machine (mode 600)"
    reached_at=$head
    read_options "$@"
    start --address="$head" ${address:+--node-ip-address="$address"} "${rest[@]}"
    echo "this machine is part of the Ray at $head, and leaves it by: scripts/ray_cluster.sh stop"
    stay
    ;;
  stop)
    running || fail "this script has no cluster running here"
    end
    ;;
  *) fail "usage: scripts/ray_cluster.sh start [options] | join HEAD:PORT [options] | stop" ;;
esac
