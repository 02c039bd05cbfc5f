#!/usr/bin/env bash
# The demo workloads: start, stop, status, build. About one core in all.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"

NAMES=(orders ledger catalog shortlived report tally)
BIN="$STROBE_HOME/demo"
# What `orders` says of itself, one JSON line per second.
REPORT="${STROBE_DEMO_REPORT:-$STROBE_HOME/data/demo/orders.jsonl}"

usage() {
  cat <<USAGE
usage: workloads.sh start|stop|status|build [NAME...]

NAME is one of: ${NAMES[*]} (default: all of them)
  STROBE_DEMO_REPORT      report of \`orders\`, now $REPORT
  ORDERS_CPU_SHARE        share of one core for \`orders\` (default 0.5)
  CATALOG_CPU_SHARE       the same for \`catalog\` (default 0.1)
  REPORT_CPU_SHARE        the same for report.py (default 0.2)
  SHORTLIVED_PER_SECOND   processes per second (default 60)
USAGE
}

pid_file() { printf '%s/run/demo-%s.pid\n' "$STROBE_HOME" "$1"; }

build() {
  command -v "${CXX:-g++}" >/dev/null || die "${CXX:-g++} is not installed; it builds the workloads" "infra/setup.sh installs it"
  make -s -C "$HERE" "STROBE_HOME=$STROBE_HOME" || die "the workloads could not be built" "see the compiler's message above"
}

start_one() {
  local name="$1" pid
  local log="$STROBE_HOME/log/demo-$name.log"
  local -a argv
  if pid="$(pidfile_pid "$(pid_file "$name")")"; then
    say "demo: $name is running (pid $pid)"
    return
  fi
  case "$name" in
    orders)
      mkdir -p "$(dirname "$REPORT")"
      argv=("$BIN/orders" --report "$REPORT" --cpu-share "${ORDERS_CPU_SHARE:-0.5}")
      ;;
    ledger) argv=("$BIN/ledger") ;;
    catalog) argv=("$BIN/catalog" "${CATALOG_CPU_SHARE:-0.1}") ;;
    shortlived) argv=("$HERE/shortlived.sh") ;;
    # The distribution's own interpreter, where there is one: it keeps no frame pointers.
    report) argv=("$(PATH=/usr/bin:$PATH command -v python3)" "$HERE/report.py") ;;
    tally) argv=("$HERE/tally.sh") ;;
  esac
  # Each is a service of its own, wherever this script was started from.
  STROBE_SERVICE="$name" spawn "$(pid_file "$name")" "$log" "${argv[@]}" \
    || { show_log "$log"; die "the workload $name ended at once" "see its log"; }
  say "demo: $name started (pid $(pidfile_pid "$(pid_file "$name")" || echo 'already ended'))"
}

# Whoever ends at once has a wrong setting; that must not pass as started.
check_started() {
  local name
  sleep 0.3
  for name in "$@"; do
    pidfile_pid "$(pid_file "$name")" >/dev/null && continue
    show_log "$STROBE_HOME/log/demo-$name.log"
    die "the workload $name ended right after its start" "see its log"
  done
}

status_one() {
  local pid
  if pid="$(pidfile_pid "$(pid_file "$1")")"; then
    say "demo: $1 is running (pid $pid)"
  else
    say "demo: $1 is not running"
    return 3
  fi
}

main() {
  local command="${1:-}" name code=0
  case "$command" in
    start | stop | status | build) shift ;;
    -h | --help | help) usage; return ;;
    *) usage >&2; return 2 ;;
  esac
  [[ $# -gt 0 ]] || set -- "${NAMES[@]}"
  for name in "$@"; do
    [[ " ${NAMES[*]} " == *" $name "* ]] || die "no workload is named $name" "one of: ${NAMES[*]}"
  done
  case "$command" in
    build) build ;;
    start)
      build
      for name in "$@"; do start_one "$name"; done
      check_started "$@"
      ;;
    stop)
      for name in "$@"; do
        stop_pidfile "$(pid_file "$name")" 5 || die "the workload $name could not be ended" "end it by hand"
        say "demo: $name stopped"
      done
      ;;
    status)
      for name in "$@"; do status_one "$name" || code=$?; done
      return "$code"
      ;;
  esac
}

main "$@"
