#!/usr/bin/env bash
# Builds the two executables and the demo workloads, with progress on long steps.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"
cd "$STROBE_REPO"

run_step "building strobe and strobe-agent" "$STROBE_HOME/log/build.log" \
  cargo build --release --locked --package strobe --package strobe-agent
run_step "building the demo workloads" "$STROBE_HOME/log/build-demo.log" make -C infra/demo
