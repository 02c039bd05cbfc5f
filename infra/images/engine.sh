#!/usr/bin/env bash
# A private container engine (Debian's dockerd) below $STROBE_HOME, for machines on which none runs: tests, and a look.
# It has its own data, socket and network bridge, and touches no other engine's. It takes root.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"

DATA="$STROBE_HOME/docker"
# Short: the path of a Unix socket has 107 bytes at most.
SOCKET="${STROBE_DOCKER_SOCKET:-$DATA/sock}"
PID_FILE="$STROBE_HOME/run/dockerd.pid"
LOG="$STROBE_HOME/log/dockerd.log"

usage() {
  cat <<USAGE
usage: engine.sh start|stop|status

  start    start dockerd and print \`export DOCKER_HOST=...\`, for: eval "\$(infra/images/engine.sh start)"
  stop     stop its containers and dockerd; images and volumes stay in $DATA
  status   exit code 0: answers; 3: not running
USAGE
}

answers() { DOCKER_HOST="unix://$SOCKET" timeout 10 docker version >/dev/null 2>&1; }
answers_or_gone() { answers || process_gone "$PID_FILE"; }

start() {
  [[ $EUID -eq 0 ]] || die "a container engine takes root" "run it as root, or use an engine that runs: export DOCKER_HOST=..."
  local program
  for program in dockerd docker iptables; do
    command -v "$program" >/dev/null || die "$program is not installed" "apt-get install docker.io iptables"
  done
  ((${#SOCKET} <= 107)) || die "the socket's path $SOCKET is longer than 107 bytes" "name a shorter one by STROBE_DOCKER_SOCKET"
  if ! pidfile_pid "$PID_FILE" >/dev/null; then
    mkdir -p "$DATA"
    # Left by one that was killed: dockerd would take its own file for a running engine.
    rm -f "$DATA/dockerd.pid"
    spawn "$PID_FILE" "$LOG" dockerd --data-root "$DATA/root" --exec-root "$DATA/exec" --pidfile "$DATA/dockerd.pid" \
      --host "unix://$SOCKET" --log-level warn
  fi
  if ! wait_for 30 answers_or_gone || process_gone "$PID_FILE"; then
    show_log "$LOG"
    stop_pidfile "$PID_FILE" 5
    die "the container engine does not start here" "see the lines above; it needs iptables, overlay mounts and control groups"
  fi
  printf 'export DOCKER_HOST=unix://%s\n' "$SOCKET"
}

stop() {
  local -a running
  if answers; then
    mapfile -t running < <(DOCKER_HOST="unix://$SOCKET" docker ps -q)
    [[ ${#running[@]} -eq 0 ]] || DOCKER_HOST="unix://$SOCKET" docker stop -t 10 "${running[@]}" >/dev/null
  fi
  stop_pidfile "$PID_FILE" 30
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  status) answers || exit 3 ;;
  -h | --help | help) usage ;;
  *) usage >&2; exit 2 ;;
esac
