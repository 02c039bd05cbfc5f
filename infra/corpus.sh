#!/usr/bin/env bash
# Programs that the benchmark of unwinding walks the stacks of: real ones, as distributions and toolchains build them.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"

PORT="${STROBE_BENCH_CORPUS_PORT:-18930}"
KEPT="$STROBE_HOME/bench/corpus"
TARGET="${CARGO_TARGET_DIR:-$STROBE_REPO/target}/release"
NAMES="python bash git gcc rust go node jvm-fp jvm postgres nginx broker-fp engine"

usage() {
  cat <<USAGE
usage: corpus.sh list
       corpus.sh prepare|run|finish NAME FOLDER

  prepare  what must be there before; exit 3 where the program cannot be had, with the reason
  run      works until it is killed, with its whole process group
  finish   stops what prepare started
USAGE
}

# need PROGRAM PACKAGE... - ends with 3 where a program is missing, and names what installs it.
need() {
  command -v "$1" >/dev/null && return
  printf '%s: not installed; apt-get install %s\n' "$1" "${*:2}"
  exit 3
}

# as_postgres COMMAND... - its server refuses to run as root.
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"; }

POSTGRES="$(find /usr/lib/postgresql/*/bin -maxdepth 0 2>/dev/null | tail -1 || true)"
REQUESTS=(curl -s -o /dev/null "http://127.0.0.1:$PORT/index.html?[1-10000000]")

java_source() {
  cat >"$1/Busy.java" <<'JAVA'
import java.util.*;
import java.util.stream.*;

public class Busy {
    static Map<String, Integer> words(int seed) {
        Random random = new Random(seed);
        Map<String, Integer> counts = new HashMap<>();
        for (int i = 0; i < 20000; i++) counts.merge(Integer.toString(random.nextInt(5000), 36), 1, Integer::sum);
        return counts;
    }
    public static void main(String[] arguments) {
        long sum = 0;
        for (int seed = 0; ; seed++)
            sum += words(seed).entrySet().stream().sorted(Map.Entry.comparingByValue()).map(Map.Entry::getKey)
                .collect(Collectors.joining(",")).hashCode();
    }
}
JAVA
}

go_source() {
  mkdir -p "$1/go"
  cat >"$1/go/go.mod" <<'GO'
module busy

go 1.19
GO
  cat >"$1/go/main.go" <<'GO'
package main

import (
	"crypto/sha256"
	"encoding/json"
	"sort"
	"strings"
)

type item struct {
	Name string
	Tags []string
}

func work(n int) int {
	items := make([]item, 0, n)
	for i := 0; i < n; i++ {
		sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		items = append(items, item{string(sum[:8]), strings.Split("a,b,c,d", ",")})
	}
	sort.Slice(items, func(a, b int) bool { return items[a].Name < items[b].Name })
	text, _ := json.Marshal(items)
	var back []item
	_ = json.Unmarshal(text, &back)
	return len(back)
}

func main() {
	done := make(chan int)
	for {
		for i := 0; i < 4; i++ {
			go func() { done <- work(2000) }()
		}
		for i := 0; i < 4; i++ {
			<-done
		}
	}
}
GO
}

# prepare NAME FOLDER
prepare() {
  local folder="$2"
  mkdir -p "$KEPT"
  case "$1" in
    python)
      # A web framework that brings its tests along, run by the distribution's interpreter.
      [[ -x /usr/bin/python3 ]] || need /usr/bin/python3 python3
      /usr/bin/python3 -m venv "$KEPT/venv" >/dev/null 2>&1 || { echo "no venv; apt-get install python3-venv"; exit 3; }
      "$KEPT/venv/bin/pip" install -q tornado >/dev/null 2>&1 || { echo "pip install tornado failed"; exit 3; }
      ;;
    bash) need bash bash ;;
    git) need git git ;;
    gcc) need g++ g++ ;;
    rust) [[ -x $TARGET/strobe ]] || { echo "not built: make build"; exit 3; } ;;
    go)
      need go golang
      go_source "$folder"
      (cd "$folder/go" && GOFLAGS=-mod=mod GOCACHE="$KEPT/go-cache" go build -o "$folder/busy-go" .)
      ;;
    node) need node nodejs ;;
    jvm | jvm-fp)
      need javac openjdk-17-jdk-headless
      java_source "$folder"
      javac -d "$folder" "$folder/Busy.java"
      ;;
    postgres)
      [[ -n $POSTGRES ]] || { echo "not installed; apt-get install postgresql"; exit 3; }
      need pgbench postgresql-contrib
      chmod a+x "$folder"
      install -d -o postgres -g postgres "$folder/postgres"
      as_postgres "$POSTGRES/initdb" -D "$folder/postgres/data" >/dev/null
      STROBE_SERVICE=corpus-postgres as_postgres "$POSTGRES/pg_ctl" -D "$folder/postgres/data" -w -l "$folder/postgres/log" \
        -o "-c listen_addresses= -k $folder/postgres" start >/dev/null
      as_postgres pgbench -h "$folder/postgres" -i -s 2 -q postgres >/dev/null 2>&1
      ;;
    nginx)
      need nginx nginx-light
      need curl curl
      mkdir -p "$folder/nginx/html"
      head -c 2000 /dev/urandom | base64 >"$folder/nginx/html/index.html"
      cat >"$folder/nginx/nginx.conf" <<NGINX
worker_processes 1;
user root;
pid $folder/nginx/pid;
error_log $folder/nginx/error.log;
events { worker_connections 256; }
http {
  access_log $folder/nginx/access.log;
  gzip on;
  gzip_types *;
  keepalive_requests 1000000;
  server { listen 127.0.0.1:$PORT; root $folder/nginx/html; }
}
env STROBE_SERVICE;
NGINX
      STROBE_SERVICE=corpus-nginx nginx -p "$folder/nginx" -c "$folder/nginx/nginx.conf"
      ;;
    broker-fp)
      STROBE_SERVICE=corpus-broker-fp JAVA_TOOL_OPTIONS=-XX:+PreserveFramePointer "$HERE/kafka/broker.sh" start --port "$((PORT + 1))" \
        --name bench-corpus-kafka --data "$folder/kafka" >/dev/null
      ;;
    engine)
      STROBE_SERVICE=corpus-engine "$HERE/clickhouse/engine.sh" start --port "$((PORT + 3))" --name bench-corpus-clickhouse \
        --data "$folder/clickhouse" >/dev/null
      ;;
    *) die "$1 is not known" "one of $NAMES" ;;
  esac
}

# run NAME FOLDER
run() {
  local folder="$2"
  cd "$folder"
  case "$1" in
    python) while :; do "$KEPT/venv/bin/python3" -m tornado.test >/dev/null 2>&1 || true; done ;;
    bash)
      # shellcheck disable=SC2016
      exec bash -c 'sum() { result=0; for i in {1..300}; do add "$i"; done; }
        add() { result=$((result + $1)); [[ $result == *7 ]] && result=$((result + 1)); }
        while :; do sum; words=(); for i in {1..500}; do words+=("w$((i * result % 977))"); done; printf "%s\n" "${words[@]}" | while read -r word; do [[ $word == w1* ]]; done; done'
      ;;
    git) while :; do git -C "$STROBE_REPO" log -p --stat --no-textconv >/dev/null; done ;;
    gcc) while :; do g++ -O2 -g -c -o "$folder/out.o" "$HERE/demo/orders.cpp"; done ;;
    rust) while :; do "$TARGET/strobe" stacks test "$STROBE_REPO/schemas/stacks" >/dev/null; done ;;
    go) exec "$folder/busy-go" ;;
    node)
      exec node -e 'function tree(n) { return n ? { left: tree(n - 1), right: tree(n - 1), text: "x".repeat(n) } : null }
        for (;;) { const text = JSON.stringify(tree(12)); JSON.parse(text).left; text.replace(/x+/g, "y").split("y").sort(); }'
      ;;
    jvm) exec java -Xmx512m -cp "$folder" Busy ;;
    jvm-fp) exec java -Xmx512m -XX:+PreserveFramePointer -cp "$folder" Busy ;;
    postgres) exec setpriv --reuid=postgres --regid=postgres --clear-groups -- pgbench -h "$folder/postgres" -c 4 -T 100000 postgres ;;
    nginx) exec "${REQUESTS[@]}" ;;
    broker-fp)
      exec java -Xmx256m -XX:+PreserveFramePointer -cp "$STROBE_HOME/kafka/jars/*" org.apache.kafka.tools.ProducerPerformance \
        --topic corpus --num-records 1000000000 --record-size 200 --throughput -1 \
        --producer-props "bootstrap.servers=127.0.0.1:$((PORT + 1))" compression.type=lz4
      ;;
    engine)
      while :; do
        curl -s -o /dev/null "http://127.0.0.1:$((PORT + 3))/?user=strobe_reader&password=$(<"$folder/clickhouse.reader.password")" \
          --data 'SELECT number % 1000 AS k, uniq(cityHash64(number)), quantile(0.9)(number) FROM numbers(3000000) GROUP BY k ORDER BY k'
      done
      ;;
  esac
}

# finish NAME FOLDER
finish() {
  local folder="$2"
  case "$1" in
    postgres) as_postgres "$POSTGRES/pg_ctl" -D "$folder/postgres/data" -m immediate stop >/dev/null ;;
    nginx) nginx -p "$folder/nginx" -c "$folder/nginx/nginx.conf" -s stop ;;
    broker-fp) "$HERE/kafka/broker.sh" stop --port "$((PORT + 1))" --name bench-corpus-kafka --data "$folder/kafka" >/dev/null ;;
    engine)
      "$HERE/clickhouse/engine.sh" stop --port "$((PORT + 3))" --name bench-corpus-clickhouse --data "$folder/clickhouse" >/dev/null
      ;;
  esac
}

main() {
  case "${1:-}" in
    list) echo "$NAMES" ;;
    prepare | run | finish)
      [[ $# -eq 3 ]] || { usage >&2; return 2; }
      "$@"
      ;;
    -h | --help | help) usage ;;
    *) usage >&2; return 2 ;;
  esac
}

main "$@"
