#!/usr/bin/env bash
# The benchmarks: starts what one needs beside whatever else runs here, runs it, and stops that again. They report and do
# not judge: the exit code says whether a benchmark ran, not whether its figures reach their targets.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"
cd "$STROBE_REPO"

BENCH="$STROBE_HOME/bench"
LOG="$STROBE_HOME/log"
TARGET="${CARGO_TARGET_DIR:-$STROBE_REPO/target}/release"
# Away from those of the stack, which may be up. The broker's controller takes the port behind the broker's.
KAFKA_PORT="${STROBE_BENCH_KAFKA_PORT:-18910}"
ENGINE_PORT="${STROBE_BENCH_ENGINE_PORT:-18920}"
ALERTS_PORT="${STROBE_BENCH_ALERTS_PORT:-18930}"
CAPTURE_SECONDS="${STROBE_BENCH_CAPTURE_SECONDS:-20}"
# The rate at which the CPUs of this host fill a batch of 8,192 samples within the 2 s after which it closes; odd.
FULL_HZ=$((5000 / $(nproc) | 1))

usage() {
  cat <<USAGE
usage: bench.sh agent|unwind|wire|pipeline|storage|sampling|stacks|symbols|on-demand [FLAGS OF THE BENCHMARK]

  agent     CPU per sample, memory and losses of the agent
  unwind    CPU per sample with frame pointers and without, whole stacks of real programs, tables
  wire      bytes per sample on Kafka, and the cost of encoding and decoding
  pipeline  from raw batches to queryable rows
  storage   bytes per sample and per stack in the store, and a flame graph over 10 million samples
  stacks    what matching stack schemas costs, beside plain regular expressions
  symbols   from debug information to a symbol file, and look-ups in it, beside LLVM's and blazesym's
  sampling  the tuner's error, the bias of totals and the truth of their intervals, in simulated fleets

  on-demand from \`strobe profile --duration 10s\` to its answer, \$STROBE_BENCH_ASKS (20) times

Captures are recorded once, into $BENCH/capture (remove it to record them again).
  STROBE_BENCH_KAFKA_PORT ($KAFKA_PORT), STROBE_BENCH_ENGINE_PORT ($ENGINE_PORT),
  STROBE_BENCH_CAPTURE_SECONDS ($CAPTURE_SECONDS), STROBE_HOME ($STROBE_HOME)
USAGE
}

# as_root COMMAND... - sampling is the only part that needs privileges.
as_root() { if [[ $EUID -eq 0 ]]; then "$@"; else sudo --preserve-env=STROBE_HOME "$@"; fi; }

broker() { "$HERE/kafka/broker.sh" "$1" --port "$KAFKA_PORT" --name bench-kafka --data "$BENCH/kafka"; }
engine() { "$HERE/clickhouse/engine.sh" "$1" --port "$ENGINE_PORT" --name bench-clickhouse --data "$BENCH/clickhouse"; }

# What this script started, and nothing else, is stopped at its end.
started=()
clean_up() {
  local part
  for part in "${started[@]}"; do
    case "$part" in
      broker) broker stop || true ;;
      engine) engine stop || true ;;
      part-*) stop_pidfile "$STROBE_HOME/run/bench-${part#part-}.pid" 30 || true ;;
      workload-*) "$HERE/demo/workloads.sh" stop "${part#workload-}" || true ;;
    esac
  done
  started=()
}
trap clean_up EXIT

# start_broker - a broker without data, its configuration and topics.
start_broker() {
  rm -rf "$BENCH/kafka"
  mkdir -p "$BENCH/symbols"
  write_config
  started+=(broker)
  broker start
  "$TARGET/strobe" --config "$BENCH/strobe.toml" topics apply >"$LOG/bench-topics.log"
}

# start_stack - the same, and an engine without data, and its tables.
start_stack() {
  start_broker
  rm -rf "$BENCH/clickhouse"
  started+=(engine)
  engine start
  "$TARGET/strobe" --config "$BENCH/strobe.toml" ddl apply >"$LOG/bench-ddl.log"
}

write_config() {
  make_signer "$BENCH"
  if [[ ! -f $BENCH/trigger ]]; then
    ssh-keygen -q -t ed25519 -N '' -C trigger -f "$BENCH/trigger"
    cat >>"$BENCH/signers.toml" <<TOML

[[signer]]
principal = "trigger"
key = "$(cut -d ' ' -f 1,2 "$BENCH/trigger.pub")"
may = ["trigger"]
TOML
  fi
  cat >"$BENCH/strobe.toml" <<TOML
# Written by infra/bench.sh.
[bus]
bootstrap = "127.0.0.1:$KAFKA_PORT"

[clickhouse]
url = "http://127.0.0.1:$ENGINE_PORT"
user = "strobe_writer"
password_file = "$BENCH/clickhouse.writer.password"
reader_user = "strobe_reader"
reader_password_file = "$BENCH/clickhouse.reader.password"

[processor]
symbol_store = "$BENCH/symbols"

[ask]
key = "$BENCH/asker"

[alerts]
listen = "127.0.0.1:$ALERTS_PORT"

[trigger]
key = "$BENCH/trigger"

[[trigger.rule]]
name = "bench"
alert = "Bench"
service = "orders"
duration = "1s"
again_after = "0s"
starts_per_hour = 3600
TOML
  cat >"$BENCH/agent.toml" <<TOML
# Written by infra/bench.sh.
state_dir = "$BENCH/agent"
symbol_store = "$BENCH/symbols"
frequency_hz = 101
signers = "$BENCH/signers.toml"

[bus]
bootstrap = "127.0.0.1:$KAFKA_PORT"

[binaries]
bytes_per_second = 268435456
TOML
}

# start_workloads - the demo's, as far as they do not run already.
start_workloads() {
  local name
  for name in orders ledger shortlived report; do
    "$HERE/demo/workloads.sh" status "$name" >/dev/null && continue
    started+=("workload-$name")
    "$HERE/demo/workloads.sh" start "$name"
  done
}

# capture HZ - raw batches of this host at that rate, recorded once; its binaries go to the symbol store of the benchmarks.
capture() {
  local hz="$1" folder="$BENCH/capture/$1"
  [[ -d $folder ]] && return
  start_workloads
  rm -rf "$folder.new" "$BENCH/capture-state"
  mkdir -p "$BENCH/capture"
  run_step "recording ${CAPTURE_SECONDS} s at $hz Hz" "$LOG/bench-capture-$hz.log" as_root "$TARGET/strobe-agent" run \
    --no-publish --state-dir "$BENCH/capture-state" --symbol-store "$BENCH/symbols" --frequency "$hz" \
    --duration "${CAPTURE_SECONDS}s" --capture "$folder.new"
  rm -rf "$BENCH/capture-state"
  # Renamed when it is whole: a recording that is cut short is not taken for one.
  as_root mv "$folder.new" "$folder"
  # Nothing but the workloads was started so far; what is measured next has the CPUs to itself.
  clean_up
}

bench_agent() {
  start_broker
  as_root "$TARGET/examples/bench_agent" --bootstrap "127.0.0.1:$KAFKA_PORT" "$@"
}

bench_unwind() {
  as_root "$TARGET/examples/bench_unwind" --corpus "$HERE/corpus.sh" "$@"
  "$TARGET/examples/bench_tables"
}

bench_wire() {
  capture "$FULL_HZ"
  capture 101
  # Full batches, and those that come at 101 Hz; of the former the last one, cut short by the end, is neither.
  local folder="$BENCH/capture/wire" file
  rm -rf "$folder"
  mkdir -p "$folder"
  for file in "$BENCH/capture/$FULL_HZ/"*; do ln -sf "$file" "$folder/full-${file##*/}"; done
  rm -f "$folder/full-${file##*/}"
  for file in "$BENCH/capture/101/"*; do ln -sf "$file" "$folder/slow-${file##*/}"; done
  say "recorded at $FULL_HZ Hz (full batches) and 101 Hz"
  "$TARGET/examples/bench_wire" --capture "$folder" "$@"
}

# pipeline FLAGS... - the program that sends a recording through a stack that runs, with the processes it is to measure.
pipeline() {
  as_root "$TARGET/examples/bench_pipeline" --strobe "$TARGET/strobe" --config "$BENCH/strobe.toml" \
    --capture "$BENCH/capture/997" --broker-pid "$(head -n 1 "$STROBE_HOME/run/bench-kafka.pid")" \
    --engine-pid "$(head -n 1 "$STROBE_HOME/run/bench-clickhouse.pid")" --logs "$LOG" "$@"
}

bench_pipeline() {
  capture 997
  start_stack
  pipeline --agent "$TARGET/strobe-agent" --agent-config "$BENCH/agent.toml" "$@"
}

bench_storage() {
  capture 997
  start_stack
  # What a real pipeline stores of a recording is measured beside the benchmark's own rows.
  pipeline --only-store
  "$TARGET/examples/bench_storage" --url "http://127.0.0.1:$ENGINE_PORT" --user strobe_writer \
    --password-file "$BENCH/clickhouse.writer.password" --capture strobe "$@"
}

bench_stacks() { "$TARGET/examples/bench_stacks" "$@"; }

# full_debug - an executable of this project with full debug information, built once: the largest that is sure to be here.
full_debug() {
  local folder="$BENCH/full-debug"
  [[ -x $folder/release/strobe ]] && return
  run_step "building strobe with full debug information (once)" "$LOG/bench-full-debug.log" \
    env CARGO_PROFILE_RELEASE_DEBUG=full CARGO_TARGET_DIR="$folder" cargo build --release --locked -p strobe --bin strobe
}

bench_symbols() {
  local file arguments=()
  if [[ " $* " != *" --binary "* ]]; then
    full_debug
    arguments=(--binary "$BENCH/full-debug/release/strobe")
  fi
  "$TARGET/examples/bench_symbols" "${arguments[@]}" "$@"
  # Separate debug files, as distributions have them.
  for file in /lib/*-linux-gnu/libc.so.6; do
    local id debug
    id="$(readelf -n "$file" | awk '/Build ID:/ { print $3 }')"
    debug="/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
    if [[ -f $debug ]]; then
      "$TARGET/examples/bench_symbols" --binary "$file" --debug "$debug" | sed 's/^figure symbols\./figure symbols.libc_/'
    else
      say "skipped: the C library's debug file: apt-get install libc6-dbg"
    fi
  done
}

bench_sampling() { "$TARGET/examples/bench_sampling" "$@"; }

# start_part NAME COMMAND... - one part of the system, stopped at the end.
start_part() {
  local name="$1"
  shift
  started=("part-$name" "${started[@]}")
  spawn "$STROBE_HOME/run/bench-$name.pid" "$LOG/bench-$name.log" "$@"
}

# Asks again and again, as a person would, on a host where the demo's services run; the median of the times to the answer.
bench_on_demand() {
  local asks="${STROBE_BENCH_ASKS:-20}" role began times=() median host
  start_workloads
  start_stack
  rm -rf "$BENCH/agent"
  for role in processor sink trigger alerts; do
    start_part "$role" "$TARGET/strobe" --config "$BENCH/strobe.toml" run "$role"
  done
  local as_root=()
  [[ $EUID -eq 0 ]] || as_root=(sudo --preserve-env=STROBE_HOME)
  start_part agent "${as_root[@]}" "$TARGET/strobe-agent" run --config "$BENCH/agent.toml"
  host="$(uname -n)"
  say "waiting for the first symbol files and the host's first word"
  for ((i = 0; i < 60; i++)); do
    "$TARGET/strobe" --config "$BENCH/strobe.toml" profile --host "$host" --duration 1s -o json \
      >"$LOG/bench-on-demand.json" 2>"$LOG/bench-on-demand.log" && break
    sleep 1
  done
  for ((i = 0; i < asks; i++)); do
    began="$(date +%s%N)"
    "$TARGET/strobe" --config "$BENCH/strobe.toml" profile --host "$host" --duration 10s -o json \
      >"$LOG/bench-on-demand.json" 2>"$LOG/bench-on-demand.log" || die "a request failed" "see $LOG/bench-on-demand.log"
    times+=($((($(date +%s%N) - began) / 1000000)))
    # An answer is one only with a name in it.
    python3 -c 'import json, sys; rows = json.load(sys.stdin)["top"]["rows"]; assert any(row["file"] or row["module"] for row in rows)' \
      <"$LOG/bench-on-demand.json"
    say "$((i + 1)) of $asks: ${times[-1]} ms"
  done
  median="$(printf '%s\n' "${times[@]}" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] / 1000 }')"
  say "bound by: the run itself (10 s), the last batch's way to the store, and the signature"
  echo "figure on_demand.first_result_s value=$median target<=13"
  alert_to_running
}

# Posts alerts, one after the other, and sees when the profiler that each starts runs: the median, by the clock of this host alone.
alert_to_running() {
  local posted times=() i running
  for ((i = 0; i < 20; i++)); do
    posted="$(date +%s%6N)"
    curl -sSf -o /dev/null "http://127.0.0.1:$ALERTS_PORT/webhook" --data-binary @- <<JSON
{"version": "4", "alerts": [{"status": "firing", "labels": {"alertname": "Bench"}, "fingerprint": "$posted",
 "startsAt": "2026-01-31T12:00:00Z"}]}
JSON
    for ((; ;)); do
      running="$("$TARGET/strobe" --config "$BENCH/strobe.toml" runs list --since -1m -o json |
        python3 -c 'import json, sys
posted = int(sys.argv[1])
since = [h["running_since_us"] for r in json.load(sys.stdin) for h in r["hosts"].values()]
print(min((s for s in since if s and s > posted), default=""))' "$posted")"
      [[ -z $running ]] || break
      (($(date +%s%6N) - posted < 30000000)) || die "an alert started nothing" "see $LOG/bench-trigger.log"
    done
    times+=($(((running - posted) / 1000)))
    sleep 2
  done
  say "bound by: the webhook, four messages over the bus, and the agent's two readings of it"
  echo "figure on_demand.alert_to_running_ms value=$(printf '%s\n' "${times[@]}" | sort -n | sed -n 10p) target<1000"
}

main() {
  local name="${1:-}"
  case "$name" in
    agent | unwind | wire | pipeline | storage | sampling | stacks | symbols | on-demand) shift ;;
    -h | --help | help) usage; return ;;
    *) usage >&2; return 2 ;;
  esac
  mkdir -p "$BENCH" "$LOG"
  # This one asks the product itself.
  local program="$TARGET/examples/bench_$name"
  [[ $name != on-demand ]] || program="$TARGET/strobe"
  [[ -x $TARGET/strobe-agent && -x $program ]] || die "the benchmark is not built" "make build"
  "bench_${name//-/_}" "$@"
}

main "$@"
