#!/usr/bin/env bash
# Builds the container images: agent, strobe, broker, engine. Each image's context is made afresh and holds only what it needs.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"

TARGET="${CARGO_TARGET_DIR:-$STROBE_REPO/target}/release"
REGISTRY="${STROBE_REGISTRY:-strobe}"
VERSION="$(sed -n 's/^version *= *"\(.*\)"/\1/p' "$STROBE_REPO/Cargo.toml" | head -n 1)"
# A site takes its own: BASE=registry.example/debian:bookworm make images
BASE="${BASE:-debian:bookworm-slim}"
# What is used where no registry answers.
OWN_BASE=strobe/debian:bookworm
CONTEXTS="$STROBE_HOME/images"
LOG="$STROBE_HOME/log"
# The agent's file may hand it these; which of them it gets is the container's say (`cap_add`).
CAPABILITIES=cap_bpf,cap_perfmon,cap_syslog,cap_sys_ptrace,cap_dac_read_search,cap_checkpoint_restore

usage() {
  cat <<USAGE
usage: build.sh [IMAGE...]       agent, strobe, broker, engine (all of them unless said)

  BASE            image to build on ($BASE); glibc of Debian 12 or later, with apt
  STROBE_REGISTRY what the names begin with ($REGISTRY): $REGISTRY/agent:$VERSION and :latest

Where the base is not on this machine and no registry answers, one is made by debootstrap ($OWN_BASE).
USAGE
}

need() { command -v "$1" >/dev/null || die "$1 is not installed; $2" "apt-get install $3"; }

# Makes a Debian without documentation, as the official slim image is; as root, since debootstrap enters what it makes.
make_base() {
  need debootstrap "no registry answers, and it makes the base image" debootstrap
  [[ $EUID -eq 0 ]] || die "making a base image with debootstrap takes root" \
    "run as root: infra/images/build.sh; or name an image that is here: BASE=IMAGE make images"
  local folder="$CONTEXTS/base"
  rm -rf "$folder"
  mkdir -p "$CONTEXTS"
  run_step "images: making a Debian base" "$LOG/images-base.log" debootstrap --variant=minbase bookworm "$folder"
  # The mirror that debootstrap took also has the updates, and beside it the security updates.
  local mirror
  mirror="$(awk '$1 == "deb" { print $2; exit }' "$folder/etc/apt/sources.list")"
  printf 'deb %s main\n' "$mirror bookworm" "$mirror bookworm-updates" "${mirror%/}-security bookworm-security" \
    >"$folder/etc/apt/sources.list"
  tar -C "$folder" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./var/log/*' \
    --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' --exclude='./usr/share/info/*' \
    --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -c . \
    | docker import -c 'CMD ["bash"]' - "$OWN_BASE" >/dev/null
  rm -rf "$folder"
}

# Sets BASE to an image that is on this machine.
find_base() {
  docker image inspect "$BASE" >/dev/null 2>&1 && return
  if [[ $BASE == debian:bookworm-slim ]] && docker image inspect "$OWN_BASE" >/dev/null 2>&1; then
    BASE="$OWN_BASE"
    return
  fi
  say "images: asking for $BASE"
  timeout 120 docker pull -q "$BASE" >"$LOG/images-pull.log" 2>&1 && return
  warn "$BASE cannot be had: $(tail -n 1 "$LOG/images-pull.log" | cut -c1-160)"
  [[ $BASE == debian:bookworm-slim ]] || die "the base image $BASE cannot be had" "pull it, or leave BASE out"
  make_base
  BASE="$OWN_BASE"
  say "images: building on $BASE"
}

# fresh_context NAME - an empty folder.
fresh_context() {
  rm -rf "${CONTEXTS:?}/$1"
  mkdir -p "$CONTEXTS/$1"
  printf '%s\n' "$CONTEXTS/$1"
}

# stripped NAME FILE - the executable without its line tables, which only whoever debugs it needs.
stripped() {
  [[ -x $TARGET/$1 ]] || die "$TARGET/$1 is not built" "make build"
  strip -o "$2" "$TARGET/$1"
}

context_agent() {
  local folder="$1"
  if ! knows_cap_bpf "$BASE"; then
    warn "this container engine cannot name CAP_BPF and CAP_PERFMON: the agent's image also takes CAP_SYS_ADMIN, which has both"
    CAPABILITIES+=",cap_sys_admin"
  fi
  stripped strobe-agent "$folder/strobe-agent"
  python3 "$HERE/file_capabilities.py" "$folder/strobe-agent" /usr/bin/strobe-agent "$CAPABILITIES" >"$folder/strobe-agent.tar"
  rm "$folder/strobe-agent"
}

context_strobe() { stripped strobe "$1/strobe"; }

context_broker() {
  [[ -d $STROBE_HOME/kafka/jars ]] || die "the broker's jars are not in $STROBE_HOME/kafka" "infra/kafka/broker.sh install"
  mkdir -p "$1/infra"
  cp -r "$HERE/../lib.sh" "$HERE/../kafka" "$1/infra/"
  cp -r "$STROBE_HOME/kafka/jars" "$1/jars"
}

context_engine() {
  local packages="$STROBE_HOME/venv/lib/python3.11/site-packages"
  [[ -d $packages/chdb ]] || die "the engine's packages for Python 3.11 are not in $STROBE_HOME/venv" \
    "infra/clickhouse/engine.sh install, with python3.11"
  mkdir -p "$1/infra/clickhouse"
  cp "$HERE/../lib.sh" "$1/infra/"
  cp -r "$HERE/../clickhouse/engine.sh" "$HERE/../clickhouse/front" "$1/infra/clickhouse/"
  # chDB's Python package asks for these; the front loads the engine without that package.
  mkdir "$1/site-packages"
  tar -C "$packages" --exclude=__pycache__ --exclude='./pandas*' --exclude='./pyarrow*' --exclude='./numpy*' \
    --exclude='./pip*' --exclude='./setuptools*' --exclude='./pkg_resources' -c . | tar -C "$1/site-packages" -x
}

build() {
  local name="$1" folder
  folder="$(fresh_context "$name")"
  "context_$name" "$folder"
  run_step "images: $REGISTRY/$name:$VERSION" "$LOG/images-$name.log" \
    docker build --file "$HERE/$name.Dockerfile" --build-arg "BASE=$BASE" --build-arg "VERSION=$VERSION" \
    --build-arg "BASE_BYTES=$(docker image inspect --format '{{.Size}}' "$BASE")" \
    --tag "$REGISTRY/$name:$VERSION" --tag "$REGISTRY/$name:latest" "$folder"
  rm -rf "$folder"
}

main() {
  local -a names=("$@")
  local name
  for name in "${names[@]}"; do
    case "$name" in
      agent | strobe | broker | engine) ;;
      -h | --help | help) usage; return ;;
      *) usage >&2; return 2 ;;
    esac
  done
  [[ ${#names[@]} -gt 0 ]] || names=(agent strobe broker engine)
  require_engine
  need python3 "the agent's archive is made with it" python3
  need strip "executables are stripped with it" binutils
  mkdir -p "$LOG"
  find_base
  for name in "${names[@]}"; do build "$name"; done
  docker image ls --filter "reference=$REGISTRY/*:$VERSION" --format '{{.Repository}}:{{.Tag}}  {{.Size}}'
}

main "$@"
