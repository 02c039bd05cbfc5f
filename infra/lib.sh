# shellcheck shell=bash
# Small helpers shared by the scripts of infra/: log lines, the end with a remedy, ports, bounded waits and pid files.
# Source it after `set -euo pipefail`; it defines functions and STROBE_HOME, and does nothing else.
#
# A pid file has two lines: the pid, and the start time of that process in clock ticks since boot (/proc/PID/stat,
# field 22). The pair names one process for ever, so a pid that has been handed to somebody else is never signalled.

STROBE_REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# Everything that is installed or run lives below this folder.
STROBE_HOME="${STROBE_HOME:-$STROBE_REPO/.strobe}"
export STROBE_HOME
# Log lines that a failure shows: what fits a screen beside the message.
LOG_TAIL_LINES=15

# say TEXT... - one progress line, with the wall time.
say() { printf '%(%H:%M:%S)T %s\n' -1 "$*"; }

# warn TEXT... - something that deserves a look and does not stop the work.
warn() { printf '%(%H:%M:%S)T warning: %s\n' -1 "$*" >&2; }

# die MESSAGE [REMEDY] - names the thing and what to do about it, then exits 1.
die() {
  printf 'error: %s\n' "$1" >&2
  if [[ $# -gt 1 ]]; then printf '  remedy: %s\n' "$2" >&2; fi
  exit 1
}

# plain - stdin without colour codes and carriage returns.
plain() { sed $'s/\e\\[[0-9;]*m//g; s/\r//g'; }

# show_log FILE - the last lines of a log and its path, on stderr. The steps of a Java stack trace stay in the file.
show_log() {
  tail -n 200 "$1" 2>/dev/null | plain | grep -vE '^[[:space:]]+(at |\.\.\. [0-9]+ more)' | tail -n "$LOG_TAIL_LINES" \
    | sed 's/^/  | /' >&2 || true
  printf '  full log: %s\n' "$1" >&2
}

# run_step TITLE LOG COMMAND... - runs the command into its own log, and says every ten seconds that it still does.
# On failure the last lines and the path of the log are printed, and it returns the command's exit code.
run_step() {
  local title="$1" log="$2" code=0 began=$SECONDS pid beat=10
  shift 2
  mkdir -p "$(dirname "$log")"
  say "$title ..."
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - began >= beat)); then
      beat=$((beat + 10))
      say "$title ... $((SECONDS - began)) s: $(tail -n 1 "$log" | plain | cut -c1-100)"
    fi
  done
  wait "$pid" || code=$?
  if ((code != 0)); then
    printf 'error: %s failed with exit code %s\n' "$title" "$code" >&2
    show_log "$log"
    return "$code"
  fi
  say "$title: done in $((SECONDS - began)) s"
}

# port_listener_inodes PORT - socket inodes that listen on the port, on any address of this network namespace.
port_listener_inodes() {
  local port_hex
  printf -v port_hex '%04X' "$1"
  # 0A is TCP_LISTEN. Reading the table, not connecting: a connection would show up in the log of whoever listens.
  awk -v port="$port_hex" '$4 == "0A" { n = split($2, part, ":"); if (part[n] == port) print $10 }' \
    /proc/net/tcp /proc/net/tcp6 2>/dev/null || true
}

# port_in_use PORT - true when somebody listens on it.
port_in_use() { [[ -n "$(port_listener_inodes "$1")" ]]; }

# port_is_free PORT - true when nobody listens on it.
port_is_free() { ! port_in_use "$1"; }

# port_holder PORT - "name (pid N)" of who listens, or nothing when that cannot be seen (it takes the owner's rights).
port_holder() {
  local inode link pid
  for inode in $(port_listener_inodes "$1"); do
    link="$(find /proc/[0-9]*/fd -maxdepth 1 -lname "socket:\[$inode\]" -print -quit 2>/dev/null || true)"
    [[ -n $link ]] || continue
    pid="${link#/proc/}"
    pid="${pid%%/*}"
    printf '%s (pid %s)\n' "$(cat "/proc/$pid/comm" 2>/dev/null || echo '?')" "$pid"
    return
  done
}

# require_port_free PORT WHAT REMEDY - dies naming the port, its holder and the remedy when the port is taken.
require_port_free() {
  port_in_use "$1" || return 0
  local holder
  holder="$(port_holder "$1")"
  # A listener without a visible process may be one that is just ending.
  if [[ -z $holder ]] && wait_for 3 port_is_free "$1"; then return 0; fi
  die "$2 cannot listen on port $1: it is in use${holder:+ by $holder}" "$3"
}

# wait_for SECONDS COMMAND... - runs the command ten times per second until it succeeds; false when the time is over.
wait_for() {
  local deadline=$((SECONDS + $1 + 1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.1
  done
}

# process_start_time PID - field 22 of /proc/PID/stat, counted after the name, which may itself hold blanks and ')'.
process_start_time() {
  local stat
  { stat="$(<"/proc/$1/stat")"; } 2>/dev/null || return 1
  read -ra stat <<<"${stat##*) }"
  # A zombie has ended and its parent has only not asked yet, unless other threads of it still do: a killed JVM holds its
  # ports and locks until the last of them is gone.
  if [[ ${stat[0]} == Z ]]; then
    local -a threads=("/proc/$1/task/"*)
    [[ ${#threads[@]} -gt 1 ]] || return 1
  fi
  printf '%s\n' "${stat[19]}"
}

# pidfile_pid FILE - the pid, when that very process still runs; else false.
pidfile_pid() {
  local pid="" started=""
  [[ -f $1 ]] || return 1
  { read -r pid && read -r started; } <"$1" || return 1
  [[ $pid =~ ^[0-9]+$ && "$(process_start_time "$pid")" == "$started" ]] || return 1
  printf '%s\n' "$pid"
}

# spawn PIDFILE LOG COMMAND... - starts a process that outlives this shell, in a session of its own, and notes its pid.
spawn() {
  local pidfile="$1" log="$2" pid started
  shift 2
  mkdir -p "$(dirname "$pidfile")" "$(dirname "$log")"
  # No descriptor but the log is handed on: a caller that reads our output through a pipe must see its end.
  (
    for fd in /proc/self/fd/*; do
      fd="${fd##*/}"
      ((fd > 2)) && eval "exec $fd>&-" 2>/dev/null
    done
    exec setsid "$@"
  ) </dev/null >>"$log" 2>&1 &
  pid=$!
  started="$(process_start_time "$pid")" || return 1
  printf '%s\n%s\n' "$pid" "$started" >"$pidfile.tmp.$$"
  mv "$pidfile.tmp.$$" "$pidfile"
}

# process_gone PIDFILE - true when the process of the pid file has ended.
process_gone() { ! pidfile_pid "$1" >/dev/null; }

# stop_pidfile PIDFILE SECONDS [SIGNAL] - signals (TERM unless said), waits, then kills; removes the pid file.
stop_pidfile() {
  local pidfile="$1" seconds="$2" signal="${3:-TERM}" pid
  if pid="$(pidfile_pid "$pidfile")"; then
    kill -s "$signal" "$pid" 2>/dev/null || true
    if ! wait_for "$seconds" process_gone "$pidfile"; then
      warn "pid $pid did not end within $seconds s of SIG$signal; killing it"
      kill -s KILL "$pid" 2>/dev/null || true
      wait_for 5 process_gone "$pidfile" || return 1
    fi
  fi
  rm -f "$pidfile"
}

# make_signer FOLDER - a key in FOLDER/asker with which whoever works on this host asks for profiles, and FOLDER/signers.toml, by which
# agents here let it; both made once.
make_signer() {
  local folder="$1"
  mkdir -p "$folder"
  [[ -f $folder/asker ]] || ssh-keygen -q -t ed25519 -N '' -C "$(id -un)@$(uname -n)" -f "$folder/asker"
  [[ -f $folder/signers.toml ]] && return
  cat >"$folder/signers.toml" <<TOML
# Who may ask the agents of this host for what. Each entry is a person's or a service's SSH key.
[[signer]]
principal = "$(id -un)@$(uname -n)"
key = "$(cut -d ' ' -f 1,2 "$folder/asker.pub")"
may = ["profile", "cancel"]
TOML
  chmod 644 "$folder/signers.toml"
}
