#!/usr/bin/env bash
# The demo: starts the stack and the workloads, profiles this host, and shows where its time went.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"

SECONDS_PROFILED="${DEMO_SECONDS:-20}"
KEEP="${DEMO_KEEP:-1}"
STROBE=("$STROBE_REPO/target/release/strobe" --config "$STROBE_HOME/etc/strobe.toml")
GRAPH="$STROBE_HOME/demo.svg"

[[ $SECONDS_PROFILED =~ ^[1-9][0-9]*$ ]] || die "DEMO_SECONDS is \`$SECONDS_PROFILED\`" "give a whole number of seconds"

finish() {
  "$HERE/demo/workloads.sh" stop || true
  if [[ $KEEP == 0 ]]; then "$HERE/stack.sh" down; fi
}
trap finish EXIT

"$HERE/demo/workloads.sh" start
"$HERE/stack.sh" up

since="$(date -u +%Y-%m-%dT%H:%M:%SZ)"
for ((left = SECONDS_PROFILED; left > 0; left -= 5)); do
  say "profiling this host ... $left s left"
  sleep "$((left < 5 ? left : 5))"
done
until="$(date -u +%Y-%m-%dT%H:%M:%SZ)"

# A batch closes after 2 s at the latest; then it is symbolized and stored.
say "waiting until the last samples are stored ..."
"${STROBE[@]}" status --wait-until "$until" --timeout 30s >/dev/null || warn "not everything is stored yet"

printf '\nThe hottest functions of this host:\n\n'
"${STROBE[@]}" top --since "$since" --until "$until" --limit 15
printf '\nThe same for the demo service `orders`:\n\n'
"${STROBE[@]}" top --since "$since" --until "$until" --service orders --limit 8
printf '\nWhat the CPUs of this host pay for, by the shipped stack schemas:\n\n'
"${STROBE[@]}" top --since "$since" --until "$until" --by tag --limit 10
printf '\nWhere every sample went:\n\n'
"${STROBE[@]}" status
"${STROBE[@]}" flamegraph --since "$since" --until "$until" --output "$GRAPH"
printf '\nFlame graph: %s\n' "$GRAPH"
if [[ $KEEP == 0 ]]; then
  printf 'Everything will be stopped now (DEMO_KEEP=0).\n'
else
  printf 'The stack still runs and records. Ask it:  %s\n' "${STROBE[*]} top --since -1m"
  printf 'Stop it:  make down\n'
fi
