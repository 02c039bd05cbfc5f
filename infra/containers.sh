#!/usr/bin/env bash
# The whole system in containers on this host: infra/compose.yaml with whichever compose is installed.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"
# shellcheck source-path=SCRIPTDIR source=images/lib.sh
source "$HERE/images/lib.sh"

PROJECT="${STROBE_PROJECT:-strobe}"
export STROBE_HOST="${STROBE_HOST:-$(uname -n)}"
# Longest wait until every part runs, on a machine that is busy with other things too.
WAIT="${STROBE_CONTAINERS_WAIT:-180}"
PARTS=(broker engine processor sink trigger agent)

usage() {
  cat <<USAGE
usage: containers.sh up|down|purge|status|strobe [ARGUMENTS OF strobe]

  up       start everything and wait until it runs; what already runs stays as it is
  down     stop and remove the containers; what was stored stays in volumes
  purge    the same, and remove the volumes
  status   one line for each container
  strobe   the tool, in a container: containers.sh strobe top --since -5m

  STROBE_PROJECT ($PROJECT) names the group, STROBE_CONTAINERS_WAIT ($WAIT) seconds, STROBE_HOST ($STROBE_HOST),
  STROBE_REGISTRY, STROBE_TAG: see compose.yaml. DOCKER_HOST says which engine.
USAGE
}

# Sets COMPOSE to the plugin, or to the program of its own that Debian has.
find_compose() {
  require_engine
  if docker compose version >/dev/null 2>&1; then
    COMPOSE=(docker compose)
  elif command -v docker-compose >/dev/null; then
    COMPOSE=(docker-compose)
  else
    die "neither the compose plugin nor docker-compose is installed" "apt-get install docker-compose"
  fi
  COMPOSE+=(--project-name "$PROJECT" --project-directory "$HERE" --file "$(compose_file)")
}

# Prints the file to use: compose.yaml, or a copy in which the agent's capabilities have names that this engine knows.
compose_file() {
  local image="${STROBE_REGISTRY:-strobe}/agent:${STROBE_TAG:-latest}" older="$STROBE_HOME/etc/compose.yaml"
  if ! docker image inspect "$image" >/dev/null 2>&1 || knows_cap_bpf "$image"; then
    printf '%s\n' "$HERE/compose.yaml"
    return
  fi
  mkdir -p "${older%/*}"
  sed 's/cap_add: \[BPF, PERFMON, .*\]/cap_add: [SYS_ADMIN, SYSLOG, SYS_PTRACE, DAC_READ_SEARCH]/' "$HERE/compose.yaml" >"$older"
  warn "this container engine cannot name CAP_BPF and CAP_PERFMON: the agent gets CAP_SYS_ADMIN, which has both"
  printf '%s\n' "$older"
}

require_images() {
  local name image missing=()
  for name in agent strobe broker engine; do
    image="${STROBE_REGISTRY:-strobe}/$name:${STROBE_TAG:-latest}"
    docker image inspect "$image" >/dev/null 2>&1 || missing+=("$image")
  done
  [[ ${#missing[@]} -eq 0 ]] || die "these images are not on this machine: ${missing[*]}" "make images, or pull them"
}

container_of() {
  docker ps -aq --filter "label=com.docker.compose.project=$PROJECT" --filter "label=com.docker.compose.service=$1" | head -n 1
}

# health PART - healthy, starting, unhealthy; or, where a container has no check, running or exited.
health() {
  local id
  id="$(container_of "$1")"
  [[ -n $id ]] || { echo missing; return; }
  docker inspect --format '{{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}' "$id"
}

all_run() {
  local part
  for part in "${PARTS[@]}"; do
    [[ "$(health "$part")" == healthy ]] || return 1
  done
}

up() {
  require_images
  run_step "containers: starting" "$STROBE_HOME/log/containers-up.log" "${COMPOSE[@]}" up --detach \
    || die "the containers do not start" "see the lines above; \`containers.sh status\` says which one"
  if ! wait_for "$WAIT" all_run; then
    status
    die "not everything runs after $WAIT s" "${COMPOSE[*]} logs PART"
  fi
  say "containers: all run; ask them:  infra/containers.sh strobe top --since -1m"
}

status() {
  local part
  for part in "${PARTS[@]}"; do printf '%-10s %s\n' "$part" "$(health "$part")"; done
}

case "${1:-}" in
  up) find_compose; up ;;
  down) find_compose; "${COMPOSE[@]}" down --timeout 40 ;;
  purge) find_compose; "${COMPOSE[@]}" down --timeout 40 --volumes ;;
  status) find_compose; status ;;
  strobe)
    find_compose
    shift
    terminal=()
    [[ -t 0 && -t 1 ]] || terminal=(-T)
    exec "${COMPOSE[@]}" run --rm "${terminal[@]}" cli "$@"
    ;;
  -h | --help | help) usage ;;
  *) usage >&2; exit 2 ;;
esac
