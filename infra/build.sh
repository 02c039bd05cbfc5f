#!/usr/bin/env bash
# Builds the two executables and the demo workloads, with progress on long steps.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"
cd "$STROBE_REPO"

# The whole workspace with the benchmarks, as the tests build it: with fewer parts the libraries would get other features,
# and all that is built here would be built again for the next command.
run_step "building strobe and strobe-agent" "$STROBE_HOME/log/build.log" \
  cargo build --release --locked --workspace --bins --examples
run_step "building the demo workloads" "$STROBE_HOME/log/build-demo.log" make -C infra/demo
