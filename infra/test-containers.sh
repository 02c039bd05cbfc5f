#!/usr/bin/env bash
# The journeys of integration-tests with every part in a container. It installs nothing: where no container engine answers, or
# the images are not here, the journeys are reported skipped, with the reason.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"
cd "$STROBE_REPO"

# Those that run the whole path and kill parts of it. The others look into a process or a folder of this host, or build a stack of their own.
JOURNEYS=("$@")
[[ ${#JOURNEYS[@]} -gt 0 ]] || JOURNEYS=(dead_letters loss)

skip() {
  printf 'skipped: %s, in containers: %s\n' "${JOURNEYS[*]}" "$1"
  exit 0
}

command -v docker >/dev/null || skip "docker is not installed: apt-get install docker.io"
docker info >/dev/null 2>&1 || skip "no container engine answers: eval \"\$(infra/images/engine.sh start)\""
for name in agent strobe broker engine; do
  docker image inspect "${STROBE_REGISTRY:-strobe}/$name:latest" >/dev/null 2>&1 \
    || skip "the image of $name is not on this machine: make images"
done

export STROBE_TEST_BACKEND=containers
cargo test --release --locked --workspace --features strobe-integration-tests/containers --no-fail-fast \
  "${JOURNEYS[@]/#/--test=}" -- --show-output --test-threads 1
