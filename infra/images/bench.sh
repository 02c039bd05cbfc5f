#!/usr/bin/env bash
# How long from `containers.sh up`, without data, to the first sample with a name; and how big the images are.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"

# Beside whatever else runs here, and without its data.
export STROBE_PROJECT="${STROBE_BENCH_PROJECT:-strobe-bench}"
REGISTRY="${STROBE_REGISTRY:-strobe}"
TAG="${STROBE_TAG:-latest}"
LOG="$STROBE_HOME/log/bench-deploy.log"
# Longest wait for the first sample.
WAIT=120

now_ms() { date +%s%3N; }

part() { docker ps -q --filter "label=com.docker.compose.project=$STROBE_PROJECT" --filter "label=com.docker.compose.service=$1"; }

# Asks as people do, by the reader; from inside, since no port is published. The inner shell expands the password.
# shellcheck disable=SC2016
named_samples() {
  docker exec "$1" bash -c 'curl -sS --fail -u "strobe_reader:$(<"$STROBE_CLICKHOUSE_READER_PASSWORD_FILE")" \
    "http://127.0.0.1:8123/?database=strobe" --data-binary "SELECT count() FROM sample_frames WHERE reason = '"''"'"'
}

has_named_samples() {
  local engine
  engine="$(part engine)"
  [[ -n $engine && "$(named_samples "$engine" 2>>"$LOG")" =~ ^[1-9] ]]
}

# added_mib NAME - what an image adds to the one that it was built on: its layers behind those of its base.
added_mib() {
  local base size
  base="$(docker image inspect --format '{{index .Config.Labels "io.strobe.base-bytes"}}' "$REGISTRY/$1:$TAG")"
  size="$(docker image inspect --format '{{.Size}}' "$REGISTRY/$1:$TAG")"
  awk -v size="$size" -v base="$base" 'BEGIN { printf "%.1f", (size - base) / 1048576 }'
}

clean_up() { "$HERE/../containers.sh" purge >>"$LOG" 2>&1 || true; }

main() {
  local began
  require_engine
  mkdir -p "${LOG%/*}"
  : >"$LOG"
  trap clean_up EXIT
  clean_up
  say "starting everything without data ..."
  began="$(now_ms)"
  "$HERE/../containers.sh" up >>"$LOG" 2>&1 &
  local starting=$!
  # Asked from the first moment that somebody could: `up` itself also waits for every health check.
  wait_for "$WAIT" has_named_samples || { show_log "$LOG"; die "no named sample after $WAIT s" "see $LOG"; }
  local first_ms=$(($(now_ms) - began))
  wait "$starting" || { show_log "$LOG"; die "not everything came to run" "see above"; }
  printf 'figure deploy.first_sample_s value=%d.%01d target<=30\n' $((first_ms / 1000)) $((first_ms % 1000 / 100))
  printf 'figure deploy.agent_image_mib value=%s target<=60\n' "$(added_mib agent)"
  printf 'figure deploy.strobe_image_mib value=%s target<=40\n' "$(added_mib strobe)"
}

main
