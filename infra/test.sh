#!/usr/bin/env bash
# Every test that this machine can run, from unit to end to end, and which ones were skipped and why.
#
# A test that finds that it cannot run here prints a line `skipped: NAME: REASON` and returns. The test runner counts
# it as passed; this script takes it out again, so that nothing that did not run is reported as passed.
set -uo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"
cd "$STROBE_REPO" || exit 1

LOG_DIR="$STROBE_HOME/log"
mkdir -p "$LOG_DIR"
LOG="$LOG_DIR/test.log"
: >"$LOG"
failed_steps=()

# step TITLE COMMAND... - runs one part of the tests into the log, printing what matters as it goes.
step() {
  local title="$1" began=$SECONDS
  shift
  say "$title ..."
  if "$@" 2>&1 | tee -a "$LOG" | grep --line-buffered -E '^(test result|failures:|error|warning: unused|---- |skipped: |[A-Za-z_: ]+ \.\.\. FAILED|thread .* panicked|FAILED|ERROR|[0-9]+ (passed|failed))'; then :; fi
  if [[ ${PIPESTATUS[0]} -ne 0 ]]; then
    failed_steps+=("$title")
    say "$title: FAILED after $((SECONDS - began)) s"
  else
    say "$title: done in $((SECONDS - began)) s"
  fi
}

# Journeys that kill parts and wait: sessions that time out, brokers and engines that start again. Each has a broker and an engine of
# its own and seldom uses a core, so these lanes run beside one another, each target by target; all others, which measure, run alone.
LANES=("loss requests" "real loss_agent on_demand" "simulated secured late_names dead_letters")
read -ra WAITING <<<"${LANES[*]}"

# Prints the names of all test targets of the workspace but those that wait.
measuring() {
  cargo metadata --no-deps --locked --format-version 1 | python3 -c '
import json, sys
names = {t["name"] for p in json.load(sys.stdin)["packages"] for t in p["targets"] if "test" in t["kind"]}
missing = set(sys.argv[1:]) - names
sys.exit(f"no such test target: {missing}") if missing else print(*sorted(names - set(sys.argv[1:])))' "${WAITING[@]}"
}

# cargo_test TARGET... - the whole workspace in one go: a part of it would be built with other features, that is, built again.
cargo_test() { cargo test --release --locked --workspace --no-fail-fast "$@" -- --show-output; }

# Prints what each lane printed, one after the other, when all have ended; fails if one did.
waiting() {
  local lane code=0
  local -a pids=() names
  for lane in "${!LANES[@]}"; do
    read -ra names <<<"${LANES[lane]}"
    cargo_test "${names[@]/#/--test=}" >"$LOG_DIR/test-lane-$lane.log" 2>&1 &
    pids+=($!)
  done
  for lane in "${!LANES[@]}"; do
    wait "${pids[lane]}" || code=$?
    cat "$LOG_DIR/test-lane-$lane.log"
  done
  return "$code"
}

step "building" cargo build --release --locked --workspace --all-targets
step "demo workloads" make -C infra/demo
step "the engine's front" infra/clickhouse/test.sh
read -ra names <<<"$(measuring)"
((${#names[@]})) || failed_steps+=("the list of tests")
step "units, properties, real parts, journeys" cargo_test --lib --bins "${names[@]/#/--test=}"
step "journeys that wait, beside one another" waiting
step "packages" infra/deb/test.sh
step "journeys in containers" infra/test-containers.sh

passed=0 failed=0
while read -r p f; do
  passed=$((passed + p))
  failed=$((failed + f))
done < <(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' "$LOG")
read -r p f < <(awk '/^=+ .*(passed|failed).* in .*s/ { for (i = 1; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1) } } END { print p + 0, f + 0 }' "$LOG")
passed=$((passed + p))
failed=$((failed + f))
mapfile -t skipped < <(grep -E '^skipped: ' "$LOG" | sort -u)

if ((${#skipped[@]})); then
  printf '\nSkipped on this machine:\n'
  printf '  %s\n' "${skipped[@]#skipped: }"
fi
if ((${#failed_steps[@]})); then
  printf '\nFailed: %s\nWhole log: %s\n' "$(IFS=,; echo "${failed_steps[*]}")" "$LOG"
  ((failed > 0)) || failed=${#failed_steps[@]}
fi
printf '\n%d passed, %d failed, %d skipped\n' "$((passed - ${#skipped[@]}))" "$failed" "${#skipped[@]}"
((${#failed_steps[@]} == 0))
