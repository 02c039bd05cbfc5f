#!/usr/bin/env bash
# The whole system on this host: broker, engine, processor, sink, trigger, agent. Each is a process of its own.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"

BIN="$STROBE_REPO/target/release"
KAFKA_PORT="${STROBE_KAFKA_PORT:-9092}"
ENGINE_PORT="${STROBE_ENGINE_PORT:-8123}"
CONFIG="$STROBE_HOME/etc"
RUN="$STROBE_HOME/run"
LOG="$STROBE_HOME/log"
# The rate of the flight recorder. Odd, so that it does not beat with timers of 10 and 100 Hz.
FREQUENCY="${STROBE_FREQUENCY:-101}"

usage() {
  cat <<USAGE
usage: stack.sh up|down|status|config

  up       start broker, engine, processor, sink, trigger and agent; what already runs stays as it is
  down     stop them, the agent first, so that what it took still gets through
  status   one line for each
  config   write strobe.toml and agent.toml to $CONFIG and print the folder

  STROBE_KAFKA_PORT ($KAFKA_PORT), STROBE_ENGINE_PORT ($ENGINE_PORT), STROBE_FREQUENCY ($FREQUENCY), STROBE_HOME
USAGE
}

# The engine names its data and its password files after its port, unless that is the usual one.
engine_name() { if [[ $ENGINE_PORT == 8123 ]]; then echo clickhouse; else echo "clickhouse-$ENGINE_PORT"; fi; }

write_config() {
  mkdir -p "$CONFIG" "$STROBE_HOME/data/symbols" "$STROBE_HOME/data/agent"
  make_signer "$CONFIG"
  cat >"$CONFIG/strobe.toml" <<TOML
# Written by infra/stack.sh for the stack on this host.
[bus]
bootstrap = "127.0.0.1:$KAFKA_PORT"

[clickhouse]
url = "http://127.0.0.1:$ENGINE_PORT"
user = "strobe_writer"
password_file = "$STROBE_HOME/data/$(engine_name).writer.password"
reader_user = "strobe_reader"
reader_password_file = "$STROBE_HOME/data/$(engine_name).reader.password"

[processor]
symbol_store = "$STROBE_HOME/data/symbols"

[ask]
key = "$CONFIG/asker"
TOML
  cat >"$CONFIG/agent.toml" <<TOML
# Written by infra/stack.sh for the stack on this host.
state_dir = "$STROBE_HOME/data/agent"
symbol_store = "$STROBE_HOME/data/symbols"
frequency_hz = $FREQUENCY
signers = "$CONFIG/signers.toml"

[bus]
bootstrap = "127.0.0.1:$KAFKA_PORT"

# The symbol store is a folder on this host: nothing that a network would have to be spared.
[binaries]
bytes_per_second = 268435456
TOML
}

# as_root COMMAND... - the agent is the only part that needs privileges.
as_root() { if [[ $EUID -eq 0 ]]; then "$@"; else sudo --preserve-env=STROBE_HOME "$@"; fi; }

start_part() {
  local name="$1"
  shift
  if pidfile_pid "$RUN/$name.pid" >/dev/null; then
    say "$name: runs already"
    return
  fi
  spawn "$RUN/$name.pid" "$LOG/$name.log" "$@"
  sleep 0.5
  if process_gone "$RUN/$name.pid"; then
    show_log "$LOG/$name.log"
    die "$name ended as soon as it started" "read its log above, or: $BIN/strobe doctor --config $CONFIG/strobe.toml"
  fi
  say "$name: started"
}

start_agent() {
  if pidfile_pid "$RUN/agent.pid" >/dev/null; then
    say "agent: runs already"
    return
  fi
  as_root "$BIN/strobe-agent" check --config "$CONFIG/agent.toml" >"$LOG/agent-check.log" 2>&1 || {
    show_log "$LOG/agent-check.log"
    die "the agent cannot profile this host" "see above; \`strobe doctor\` says more"
  }
  as_root "$HERE/stack.sh" spawn-agent
  say "agent: started at $FREQUENCY Hz"
}

up() {
  [[ -x $BIN/strobe && -x $BIN/strobe-agent ]] || die "strobe is not built" "make build"
  write_config
  "$HERE/kafka/broker.sh" start --port "$KAFKA_PORT"
  "$HERE/clickhouse/engine.sh" start --port "$ENGINE_PORT"
  "$BIN/strobe" --config "$CONFIG/strobe.toml" topics apply
  "$BIN/strobe" --config "$CONFIG/strobe.toml" ddl apply
  "$BIN/strobe" --config "$CONFIG/strobe.toml" stacks apply --shipped --unless-any
  start_part processor "$BIN/strobe" --config "$CONFIG/strobe.toml" run processor
  start_part sink "$BIN/strobe" --config "$CONFIG/strobe.toml" run sink
  start_part trigger "$BIN/strobe" --config "$CONFIG/strobe.toml" run trigger
  start_agent
}

down() {
  as_root "$HERE/stack.sh" stop-agent
  stop_pidfile "$RUN/processor.pid" 30
  stop_pidfile "$RUN/sink.pid" 30
  stop_pidfile "$RUN/trigger.pid" 30
  "$HERE/clickhouse/engine.sh" stop --port "$ENGINE_PORT"
  "$HERE/kafka/broker.sh" stop --port "$KAFKA_PORT"
  say "everything is stopped; what was stored stays in $STROBE_HOME/data"
}

status() {
  local name pid
  for name in agent processor sink trigger; do
    if pid="$(pidfile_pid "$RUN/$name.pid")"; then say "$name: runs (pid $pid)"; else say "$name: not running"; fi
  done
  "$HERE/kafka/broker.sh" status --port "$KAFKA_PORT" || true
  "$HERE/clickhouse/engine.sh" status --port "$ENGINE_PORT" || true
}

case "${1:-}" in
  up) up ;;
  down) down ;;
  status) status ;;
  config) write_config && printf '%s\n' "$CONFIG" ;;
  spawn-agent) start_part agent "$BIN/strobe-agent" run --config "$CONFIG/agent.toml" ;;
  stop-agent) stop_pidfile "$RUN/agent.pid" 20 ;;
  -h | --help | help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
