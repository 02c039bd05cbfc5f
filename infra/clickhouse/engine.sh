#!/usr/bin/env bash
# ClickHouse's HTTP interface in front of chDB, on loopback: install, start, stop, status, kill, run.
# Several run side by side with other ports: each has its own name, data folder, passwords, log and pid file.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"

DEFAULT_PORT=8123
# What the front gives running requests after SIGTERM (--stop-timeout, 30 s), and some for closing the engine.
STOP_SECONDS=45

usage() {
  cat <<USAGE
usage: engine.sh install|start|stop|status|kill|run [flags] [-- FLAGS OF THE FRONT]

  install   Python environment with the pinned packages (nothing to do when requirements.txt has not changed)
  start     write passwords where there are none, start, wait until /ping answers
  stop      SIGTERM: running requests finish; SIGKILL after $STOP_SECONDS s
  kill      SIGKILL at once, as a crash would
  status    exit code 0: answers; 1: runs and does not answer; 3: not running
  run       like start, in the foreground, for systemd and containers

  --port N                     port                       STROBE_CLICKHOUSE_PORT                  $DEFAULT_PORT
  --host ADDRESS               address to listen on       STROBE_CLICKHOUSE_HOST                  127.0.0.1
  --name NAME                  names data, log, pid file  STROBE_CLICKHOUSE_NAME                  clickhouse, or clickhouse-PORT
  --data DIR                   data folder                STROBE_CLICKHOUSE_DATA                  \$STROBE_HOME/data/NAME
  --writer-password-file FILE  of strobe_writer           STROBE_CLICKHOUSE_WRITER_PASSWORD_FILE  DATA.writer.password
  --reader-password-file FILE  of strobe_reader           STROBE_CLICKHOUSE_READER_PASSWORD_FILE  DATA.reader.password
  --log FILE                   log file                   STROBE_CLICKHOUSE_LOG                   \$STROBE_HOME/log/NAME.log
  --pid-file FILE              pid file                   STROBE_CLICKHOUSE_PID_FILE              \$STROBE_HOME/run/NAME.pid
  --venv DIR                   the Python environment     STROBE_CLICKHOUSE_VENV                  \$STROBE_HOME/venv
  --wait SECONDS               longest wait for /ping     STROBE_CLICKHOUSE_WAIT                  60

What follows \`--\` goes to the front: \`engine.sh run -- --help\` lists its flags. STROBE_HOME is now $STROBE_HOME
USAGE
}

parse() {
  PORT="${STROBE_CLICKHOUSE_PORT:-$DEFAULT_PORT}"
  HOST="${STROBE_CLICKHOUSE_HOST:-127.0.0.1}"
  NAME="${STROBE_CLICKHOUSE_NAME:-}"
  DATA="${STROBE_CLICKHOUSE_DATA:-}"
  WRITER="${STROBE_CLICKHOUSE_WRITER_PASSWORD_FILE:-}"
  READER="${STROBE_CLICKHOUSE_READER_PASSWORD_FILE:-}"
  LOG="${STROBE_CLICKHOUSE_LOG:-}"
  PID_FILE="${STROBE_CLICKHOUSE_PID_FILE:-}"
  VENV="${STROBE_CLICKHOUSE_VENV:-$STROBE_HOME/venv}"
  WAIT="${STROBE_CLICKHOUSE_WAIT:-60}"
  MORE=()
  while [[ $# -gt 0 ]]; do
    if [[ $1 == -- ]]; then
      shift
      MORE=("$@")
      break
    fi
    [[ $# -ge 2 ]] || die "$1 needs a value, or is no flag of engine.sh" "engine.sh --help"
    case "$1" in
      --port) PORT="$2" ;;
      --host) HOST="$2" ;;
      --name) NAME="$2" ;;
      --data) DATA="$2" ;;
      --writer-password-file) WRITER="$2" ;;
      --reader-password-file) READER="$2" ;;
      --log) LOG="$2" ;;
      --pid-file) PID_FILE="$2" ;;
      --venv) VENV="$2" ;;
      --wait) WAIT="$2" ;;
      *) die "unknown flag $1" "engine.sh --help" ;;
    esac
    shift 2
  done
  [[ $PORT =~ ^[1-9][0-9]{0,4}$ ]] || die "--port is \"$PORT\": it takes a number from 1 to 65535" "engine.sh --help"
  [[ $WAIT =~ ^[1-9][0-9]{0,4}$ ]] || die "--wait is \"$WAIT\": it takes a number of seconds" "engine.sh --help"
  if [[ -z $NAME ]]; then
    NAME=clickhouse
    [[ $PORT == "$DEFAULT_PORT" ]] || NAME="clickhouse-$PORT"
  fi
  DATA="$(realpath -m "${DATA:-$STROBE_HOME/data/$NAME}")"
  WRITER="$(realpath -m "${WRITER:-$DATA.writer.password}")"
  READER="$(realpath -m "${READER:-$DATA.reader.password}")"
  LOG="$(realpath -m "${LOG:-$STROBE_HOME/log/$NAME.log}")"
  PID_FILE="$(realpath -m "${PID_FILE:-$STROBE_HOME/run/$NAME.pid}")"
  VENV="$(realpath -m "$VENV")"
  URL="http://$HOST:$PORT"
}

# find_python - Python 3.11 or later, which is what chDB's wheels and asyncio.timeout need.
find_python() {
  local candidate
  for candidate in python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "no Python 3.11 or later with its venv module" "apt-get install python3 python3-venv"
}

# install_packages FILE - the packages of one requirements file, unless exactly these are there already.
install_packages() {
  local stamp wanted
  stamp="$VENV/.installed-$(basename "$1")"
  wanted="$(cat "$HERE"/requirements*.txt | sha256sum)"
  if [[ -f $stamp && "$(<"$stamp")" == "$wanted" ]]; then
    say "ClickHouse engine: $(basename "$1") is installed in $VENV"
    return
  fi
  # Two that install at once would spoil each other's environment.
  mkdir -p "$(dirname "$VENV")"
  exec 9>"$VENV.lock"
  flock 9
  if [[ ! -x $VENV/bin/python ]]; then
    run_step "ClickHouse engine: creating $VENV" "$STROBE_HOME/log/clickhouse-venv.log" "$(find_python)" -m venv "$VENV"
  fi
  run_step "ClickHouse engine: installing $(basename "$1") (about 300 MB the first time)" "$STROBE_HOME/log/clickhouse-install.log" \
    "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off -r "$1"
  printf '%s\n' "$wanted" >"$stamp"
  exec 9>&-
}

# write_password FILE - a random password that only the owner can read, unless the file exists.
write_password() {
  [[ ! -e $1 ]] || return 0
  mkdir -p "$(dirname "$1")"
  # A file of its own that is linked into place: of two that start at once, both use the first one's.
  (umask 077 && od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$1.$$")
  ln "$1.$$" "$1" 2>/dev/null || true
  rm -f "$1.$$"
}

prepare() {
  [[ -x $VENV/bin/python ]] || die "the engine is not installed in $VENV" "$HERE/engine.sh install"
  require_port_free "$PORT" "the ClickHouse engine" \
    "stop who holds it, or choose another with --port or STROBE_CLICKHOUSE_PORT"
  write_password "$WRITER"
  write_password "$READER"
  # A clean environment: whatever secrets the caller's holds are none of the engine's.
  local variable flags=()
  for variable in "${!STROBE_CLICKHOUSE_@}"; do flags+=("$variable=${!variable}"); done
  COMMAND=(env -i "${flags[@]}" "PATH=$PATH" "LANG=C.UTF-8" "PYTHONPATH=$HERE" "PYTHONDONTWRITEBYTECODE=1" ${TZ:+"TZ=$TZ"}
    "$VENV/bin/python" -m front --data-dir "$DATA" --host "$HOST" --port "$PORT"
    --writer-password-file "$WRITER" --reader-password-file "$READER" "${MORE[@]}")
}

answers() { [[ "$(curl -s --max-time 2 "$URL/ping" 2>/dev/null)" == "Ok." ]]; }

answers_or_gone() { answers || process_gone "$PID_FILE"; }

start() {
  local pid
  if pid="$(pidfile_pid "$PID_FILE")"; then
    answers || die "pid $pid runs and does not answer on $URL" "engine.sh stop, and see $LOG"
    say "ClickHouse engine already answers on $URL (pid $pid)"
    return
  fi
  prepare
  spawn "$PID_FILE" "$LOG" "${COMMAND[@]}"
  if ! wait_for "$WAIT" answers_or_gone || process_gone "$PID_FILE"; then
    show_log "$LOG"
    stop_pidfile "$PID_FILE" 5
    die "the ClickHouse engine did not start on $URL" "see the lines above"
  fi
  say "ClickHouse engine answers on $URL (pid $(pidfile_pid "$PID_FILE")), log $LOG"
}

status() {
  local pid
  pid="$(pidfile_pid "$PID_FILE")" || { say "ClickHouse engine is not running ($PID_FILE)"; exit 3; }
  answers || { say "ClickHouse engine runs (pid $pid) and does not answer on $URL"; exit 1; }
  say "ClickHouse engine answers on $URL (pid $pid)"
}

command="${1:-}"
[[ $# -eq 0 ]] || shift
case "$command" in
  install) parse "$@"; install_packages "$HERE/requirements.txt" ;;
  install-dev) parse "$@"; install_packages "$HERE/requirements-dev.txt" ;;
  start) parse "$@"; start ;;
  stop) parse "$@"; stop_pidfile "$PID_FILE" "$STOP_SECONDS" ;;
  kill) parse "$@"; stop_pidfile "$PID_FILE" 5 KILL ;;
  status) parse "$@"; status ;;
  run) parse "$@"; prepare; exec "${COMMAND[@]}" ;;
  -h | --help | help) usage ;;
  *) usage >&2 && exit 2 ;;
esac
