#!/usr/bin/env bash
# One Apache Kafka broker in KRaft mode, on loopback: install, start, stop, status, kill, run, ping.
# Several run side by side, each with its own ports and name; the name leads to its data folder, log and pid file.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"

usage() {
  cat <<USAGE
usage: broker.sh install|start|stop|status|kill|run|ping [flags]

  install   resolve the broker's jars with Maven (nothing to do when pom.xml has not changed)
  start     format the storage once, start the broker, wait until it answers
  stop      SIGTERM, and SIGKILL after 30 s
  kill      SIGKILL at once, as a crash would
  status    exit code 0: answers; 1: runs and does not answer; 3: not running
  run       like start, in the foreground, for containers
  ping      exit code 0: a broker answers on the port, whoever started it

  --port N              client port                       STROBE_KAFKA_PORT             $DEFAULT_PORT
  --controller-port N   controller port                   STROBE_KAFKA_CONTROLLER_PORT  port + 1
  --host ADDRESS        address to listen on              STROBE_KAFKA_HOST             127.0.0.1
  --advertise HOST      what clients are told to call     STROBE_KAFKA_ADVERTISE        --host, or the host's name for 0.0.0.0
  --secure DIR          TLS, SCRAM and ACLs, no other way in, with what secrets.sh made in DIR  STROBE_KAFKA_SECURE
  --name NAME           names data, log and pid file      STROBE_KAFKA_NAME             kafka
  --data DIR            data folder                       STROBE_KAFKA_DATA             \$STROBE_HOME/data/NAME
  --log FILE            log file                          STROBE_KAFKA_LOG              \$STROBE_HOME/log/NAME.log
  --pid-file FILE       pid file                          STROBE_KAFKA_PID_FILE         \$STROBE_HOME/run/NAME.pid
  --jars DIR            the jars                          STROBE_KAFKA_JARS             \$STROBE_HOME/kafka/jars
  --heap SIZE           Java heap                         STROBE_KAFKA_HEAP             512m
                        more options for Java             STROBE_KAFKA_JAVA_OPTIONS
  --wait SECONDS        longest wait for the first answer STROBE_KAFKA_WAIT             60

STROBE_HOME is now $STROBE_HOME
USAGE
}

DEFAULT_PORT=9092
# A broker needs well under a second to end when it is idle; this is for one that must flush.
STOP_SECONDS=30

parse() {
  PORT="${STROBE_KAFKA_PORT:-$DEFAULT_PORT}"
  CONTROLLER_PORT="${STROBE_KAFKA_CONTROLLER_PORT:-}"
  LISTEN="${STROBE_KAFKA_HOST:-127.0.0.1}"
  ADVERTISE="${STROBE_KAFKA_ADVERTISE:-}"
  SECURE="${STROBE_KAFKA_SECURE:-}"
  NAME="${STROBE_KAFKA_NAME:-kafka}"
  DATA="${STROBE_KAFKA_DATA:-}"
  LOG="${STROBE_KAFKA_LOG:-}"
  PID_FILE="${STROBE_KAFKA_PID_FILE:-}"
  JARS="${STROBE_KAFKA_JARS:-$STROBE_HOME/kafka/jars}"
  HEAP="${STROBE_KAFKA_HEAP:-512m}"
  WAIT="${STROBE_KAFKA_WAIT:-60}"
  while [[ $# -gt 0 ]]; do
    [[ $# -ge 2 ]] || die "$1 needs a value, or is no flag of broker.sh" "broker.sh --help"
    case "$1" in
      --port) PORT="$2" ;;
      --controller-port) CONTROLLER_PORT="$2" ;;
      --host) LISTEN="$2" ;;
      --advertise) ADVERTISE="$2" ;;
      --secure) SECURE="$2" ;;
      --name) NAME="$2" ;;
      --data) DATA="$2" ;;
      --log) LOG="$2" ;;
      --pid-file) PID_FILE="$2" ;;
      --jars) JARS="$2" ;;
      --heap) HEAP="$2" ;;
      --wait) WAIT="$2" ;;
      *) die "unknown flag $1" "broker.sh --help" ;;
    esac
    shift 2
  done
  require_number --port "$PORT"
  CONTROLLER_PORT="${CONTROLLER_PORT:-$((PORT + 1))}"
  require_number --controller-port "$CONTROLLER_PORT"
  require_number --wait "$WAIT"
  if [[ -z $ADVERTISE ]]; then
    ADVERTISE="$LISTEN"
    # Nobody can call 0.0.0.0.
    [[ $LISTEN != 0.0.0.0 ]] || ADVERTISE="$HOSTNAME"
  fi
  PROTOCOL=PLAINTEXT
  if [[ -n $SECURE ]]; then
    SECURE="$(realpath -m "$SECURE")"
    [[ -r $SECURE/broker.pem && -r $SECURE/admin.password ]] \
      || die "--secure $SECURE has no broker.pem or no admin.password" "infra/kafka/secrets.sh $SECURE"
    PROTOCOL=SASL_SSL
  fi
  DATA="$(realpath -m "${DATA:-$STROBE_HOME/data/$NAME}")"
  LOG="$(realpath -m "${LOG:-$STROBE_HOME/log/$NAME.log}")"
  PID_FILE="$(realpath -m "${PID_FILE:-$STROBE_HOME/run/$NAME.pid}")"
  JARS="$(realpath -m "$JARS")"
}

require_number() {
  [[ $2 =~ ^[1-9][0-9]{0,4}$ ]] || die "$1 is \"$2\": it takes a number from 1 to 99999" "broker.sh --help"
}

pom_stamp() { sha256sum <"$HERE/pom.xml" | cut -d' ' -f1; }

jars_are_current() { [[ "$(cat "$JARS/.stamp" 2>/dev/null)" == "$(pom_stamp)" ]]; }

install_jars() {
  if jars_are_current; then
    say "kafka: jars are installed in $JARS"
    return
  fi
  command -v mvn >/dev/null || die "mvn is not installed; it resolves the broker's jars" "infra/setup.sh installs it"
  mkdir -p "$(dirname "$JARS")"
  exec 9>"$JARS.lock"
  flock 9
  jars_are_current && return
  # Copied beside and renamed: an install that is cut short leaves no half-filled folder with a good stamp.
  local fresh="$JARS.new"
  rm -rf "$fresh"
  run_step "kafka: resolving the broker's jars" "$STROBE_HOME/log/kafka-install.log" \
    mvn -B -Dstyle.color=never -f "$HERE/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$fresh" 9>&- \
    || die "the jars of the broker could not be resolved" "check that Maven Central can be reached, then run this again"
  pom_stamp >"$fresh/.stamp"
  rm -rf "$JARS"
  mv "$fresh" "$JARS"
  say "kafka: $(find "$JARS" -name '*.jar' | wc -l) jars in $JARS"
}

write_properties() {
  cat >"$DATA/server.properties" <<PROPERTIES
# Written by broker.sh at each start.
process.roles=broker,controller
node.id=1
# Without --secure there is no authentication here: loopback, or the network of a group of containers.
listeners=$PROTOCOL://$LISTEN:$PORT,CONTROLLER://127.0.0.1:$CONTROLLER_PORT
advertised.listeners=$PROTOCOL://$ADVERTISE:$PORT
listener.security.protocol.map=$PROTOCOL:$PROTOCOL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=$PROTOCOL
controller.listener.names=CONTROLLER
# Static voters: the ports live in this file alone, so that data can be started again on other ports.
controller.quorum.voters=1@127.0.0.1:$CONTROLLER_PORT
log.dirs=$DATA/log

# Topics are created on purpose, with their partitions and limits, never by a typing error.
auto.create.topics.enable=false
# A topic's own max.message.bytes may be above or below this; the only ceiling is socket.request.max.bytes, 100 MiB.
message.max.bytes=1048588

# One node: every internal topic has one replica, and as many partitions as two cores can use.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1

# A group of one or two members need not wait for latecomers.
group.initial.rebalance.delay.ms=0
# Members may ask to be declared dead sooner than the usual 6 s.
group.min.session.timeout.ms=1000
# After a SIGKILL the broker's earlier self must first be declared dead; the default makes a restart wait for 9 s.
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500

# Small: one host's batches, a heap of $HEAP. The cleaner's default buffer alone would take a quarter of that.
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=2
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=16777216
PROPERTIES
  [[ -z $SECURE ]] || secure_properties >>"$DATA/server.properties"
  # It holds a password when --secure is given.
  chmod 600 "$DATA/server.properties"
}

# What closes the broker. A certificate on a line of its own, since a properties file has no others.
secure_properties() {
  cat <<PROPERTIES

# Closed: TLS, a password for each principal, and nothing that no ACL allows.
ssl.keystore.type=PEM
ssl.keystore.location=$SECURE/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location=$SECURE/ca.pem
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
  username="admin" password="$(<"$SECURE/admin.password")";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
# The controller's listener, on loopback and within this process, has no names.
super.users=User:admin;User:ANONYMOUS
PROPERTIES
}

# Passwords go into the storage when it is formatted: before that nobody could be let in to set them. The tool takes them on its
# command line, so format where nobody else is logged in. What it prints of them stays out of the log.
scram_flags() {
  local file principal
  [[ -n $SECURE ]] || return 0
  for file in "$SECURE"/*.password; do
    principal="$(basename "$file" .password)"
    printf -- '--add-scram\nSCRAM-SHA-512=[name=%s,password=%s]\n' "$principal" "$(<"$file")"
  done
}

# Kafka's own form of an id: 16 random bytes in base64 for URLs, no padding, and no dash in front (it looks like a flag).
random_cluster_id() {
  local id=-
  while [[ $id == -* ]]; do
    id="$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=')"
  done
  printf '%s\n' "$id"
}

format_storage_once() {
  [[ -f $DATA/log/meta.properties ]] && return
  local -a scram
  mapfile -t scram < <(scram_flags)
  say "kafka: formatting $DATA"
  if ! java -Xmx128m -cp "$JARS/*" "-Dlog4j2.configurationFile=$HERE/log4j2.properties" kafka.tools.StorageTool format \
    --ignore-formatted --cluster-id "$(random_cluster_id)" --config "$DATA/server.properties" \
    "${scram[@]}" 2>&1 | grep -v '^Bootstrap metadata' >>"$LOG"; then
    show_log "$LOG"
    die "the storage in $DATA could not be formatted" "see the log; an empty --data folder starts afresh"
  fi
}

# Asks for the metadata of the cluster (Metadata, version 0, all topics) and wants our correlation id and at least one
# broker back. A port that merely accepts is not enough: the broker is in the list only once the controller let it in.
metadata_answer() {
  exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
  #       size 14      api 3   version 0  correlation 1   no client id  all topics
  printf '\0\0\0\016\0\003\0\0\0\0\0\001\377\377\0\0\0\0' >&3
  [[ "$(head -c 12 <&3 | od -An -v -tx1 -j4 | tr -d ' \n')" =~ ^00000001000000(0[1-9a-f]|[1-9a-f].)$ ]]
}
export -f metadata_answer

# The inner shell expands $1, and timeout bounds it.
# shellcheck disable=SC2016
answers() {
  if [[ -n ${SECURE:-} ]]; then
    # A closed broker answers nobody without a name; that it speaks TLS with its certificate is what can be seen.
    timeout 3 openssl s_client -connect "127.0.0.1:$1" -CAfile "$SECURE/ca.pem" -verify_return_error </dev/null >/dev/null 2>&1
  else
    timeout 3 bash -c 'metadata_answer "$1"' _ "$1" 2>/dev/null
  fi
}

answers_or_ended() { process_gone "$PID_FILE" || answers "$PORT"; }

# The port that the running broker was started with.
running_port() { sed -n 's/^advertised.listeners=[A-Z_]*:.*:\([0-9]*\)$/\1/p' "$DATA/server.properties" 2>/dev/null; }

# Everything up to the start itself: ports, storage, and COMMAND.
prepare() {
  require_port_free "$PORT" "kafka" "stop it, or choose another port: broker.sh start --port N, or STROBE_KAFKA_PORT=N"
  require_port_free "$CONTROLLER_PORT" "kafka's controller" \
    "stop it, or choose another port: broker.sh start --controller-port N, or STROBE_KAFKA_CONTROLLER_PORT=N"
  write_properties
  format_storage_once
  local -a java_options
  read -ra java_options <<<"${STROBE_KAFKA_JAVA_OPTIONS:-}"
  COMMAND=(java "-Xms128m" "-Xmx$HEAP" -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:+ExitOnOutOfMemoryError
    "${java_options[@]}" -Djava.awt.headless=true "-Dlog4j2.configurationFile=$HERE/log4j2.properties"
    -cp "$JARS/*" kafka.Kafka "$DATA/server.properties")
}

# In the foreground, with the log on standard output: whoever runs this watches it.
run() {
  command -v java >/dev/null || die "java is not installed; the broker runs on Java 17 or later" "infra/setup.sh installs it"
  jars_are_current || die "the jars in $JARS are not those of pom.xml" "broker.sh install"
  mkdir -p "$DATA" "$(dirname "$LOG")"
  prepare
  exec "${COMMAND[@]}"
}

start() {
  command -v java >/dev/null || die "java is not installed; the broker runs on Java 17 or later" "infra/setup.sh installs it"
  jars_are_current || install_jars
  mkdir -p "$DATA" "$(dirname "$LOG")"
  # Two starts at once: the second waits here and then finds the broker running.
  exec 8>"$DATA/.start.lock"
  flock 8
  local pid
  if pid="$(pidfile_pid "$PID_FILE")"; then
    local running
    running="$(running_port)"
    [[ $running == "$PORT" ]] || die "$NAME runs already (pid $pid), on port ${running:-unknown} and not on $PORT" \
      "broker.sh stop --name $NAME first, or start a second one beside it with another --name"
    wait_for "$WAIT" answers "$PORT" || die "$NAME runs (pid $pid) and does not answer on port $PORT" \
      "see $LOG; then: broker.sh kill --name $NAME, and start again"
    say "kafka: $NAME is running (pid $pid) on 127.0.0.1:$PORT"
    return
  fi
  # Kafka's own lock is taken only after its controller has opened the metadata log: too late to keep that one whole.
  if pid="$(pidfile_pid "$DATA/broker.pid")"; then
    die "the data folder $DATA is in use by another broker (pid $pid)" "stop that one, or choose another folder: --data DIR"
  fi
  prepare
  local began=$SECONDS
  spawn "$PID_FILE" "$LOG" "${COMMAND[@]}" \
    || { show_log "$LOG"; die "the broker ended at once" "see the log"; }
  cp "$PID_FILE" "$DATA/broker.pid"
  if ! wait_for "$WAIT" answers_or_ended; then
    show_log "$LOG"
    die "the broker did not answer on port $PORT within $WAIT s; it is left running" "see the log, or allow more with --wait"
  fi
  if ! pid="$(pidfile_pid "$PID_FILE")"; then
    rm -f "$PID_FILE"
    show_log "$LOG"
    die "the broker ended before it answered on port $PORT" "see the log"
  fi
  say "kafka: $NAME answers on 127.0.0.1:$PORT after $((SECONDS - began)) s (pid $pid, data $DATA)"
}

stop() {
  local pid
  if ! pid="$(pidfile_pid "$PID_FILE")"; then
    rm -f "$PID_FILE"
    say "kafka: $NAME is not running"
    return
  fi
  stop_pidfile "$PID_FILE" "$STOP_SECONDS" "$1" || die "$NAME (pid $pid) could not be ended" "end it by hand"
  say "kafka: $NAME stopped (pid $pid)"
}

status() {
  local pid port
  if ! pid="$(pidfile_pid "$PID_FILE")"; then
    say "kafka: $NAME is not running"
    return 3
  fi
  port="$(running_port)"
  port="${port:-$PORT}"
  if ! answers "$port"; then
    say "kafka: $NAME runs (pid $pid) and does not answer on 127.0.0.1:$port; log: $LOG"
    return 1
  fi
  say "kafka: $NAME answers on 127.0.0.1:$port (pid $pid)"
}

main() {
  local command="${1:-}"
  case "$command" in
    install | start | stop | status | kill | run | ping) shift ;;
    -h | --help | help) usage; return ;;
    *) usage >&2; return 2 ;;
  esac
  [[ ${1:-} != --help ]] || { usage; return; }
  parse "$@"
  case "$command" in
    install) install_jars ;;
    start) start ;;
    run) run ;;
    ping) answers "$PORT" ;;
    stop) stop TERM ;;
    kill) stop KILL ;;
    status) status ;;
  esac
}

main "$@"
