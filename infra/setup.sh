#!/usr/bin/env bash
# Installs what a fresh Debian 12 lacks: Debian packages, the broker's jars, the engine. A second run finds it all there.
# Git, make and Rust are prerequisites; Rust is only checked, since how to get it is everyone's own choice.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$HERE/lib.sh"

# One per line, with what it is for. "a|b": either serves, the first is installed when neither is there.
PACKAGES=(
  ca-certificates   # registries over TLS
  g++               # librdkafka, the demo workloads
  clang             # the BPF programs
  libcurl4-openssl-dev # librdkafka includes its header even where it is built without curl; nothing is linked
  libssl-dev        # librdkafka
  make              # libbpf, the demo workloads
  pkg-config        # libbpf finds libelf and zlib with it
  libelf-dev        # libbpf
  zlib1g-dev        # libbpf
  binutils          # tests take binaries apart with it
  python3           # the engine's HTTP front, a demo workload
  python3-venv      # the engine's packages stay in a folder of their own
  "default-jre-headless|openjdk-17-jre-headless|openjdk-21-jre-headless|openjdk-25-jre-headless" # the broker
  maven             # resolves the broker's jars
  gdb               # tests hold stacks against those that it finds
  kcat              # tests read the bus with what everybody has
  curl              # tests speak to the engine with what everybody has
  openssh-client    # people sign requests with it
  linux-perf        # the peer in `make bench-agent`
)

installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# Prints the packages to install: of each line without an installed alternative, the first.
missing_packages() {
  local line name found
  for line in "${PACKAGES[@]}"; do
    found=""
    for name in ${line//|/ }; do
      if installed "$name"; then found=yes && break; fi
    done
    [[ -n $found ]] || printf '%s\n' "${line%%|*}"
  done
}

install_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    die "this system has no apt: the Debian packages cannot be installed by this script" \
      "install what corresponds to: ${PACKAGES[*]%%|*}; then: infra/kafka/broker.sh install; infra/clickhouse/engine.sh install"
  fi
  local -a missing sudo=()
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} -eq 0 ]]; then
    say "Debian packages: all ${#PACKAGES[@]} are installed"
    return
  fi
  say "Debian packages to install: ${missing[*]}"
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || die "installing Debian packages takes root, and sudo is not installed" \
      "run as root: apt-get install ${missing[*]}"
    # Asks for the password now, in the foreground: the steps below write to a log.
    sudo -v || die "sudo was refused" "run as root: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  # Another apt may be at work, as on a machine that has just booted: wait for it rather than fail.
  local -a apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  run_step "apt-get update" "$STROBE_HOME/log/setup-apt-update.log" "${apt[@]}" update \
    || die "the package lists could not be updated" "check the network and /etc/apt/sources.list, then run this again"
  run_step "apt-get install" "$STROBE_HOME/log/setup-apt-install.log" \
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" \
    || die "the Debian packages could not be installed" "see the log; then run this again"
}

# version_at_least HAVE WANT
version_at_least() { [[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" == "$2" ]]; }

check_rust() {
  local wanted have
  wanted="$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$STROBE_REPO/Cargo.toml" | head -n 1)"
  local remedy="get it with rustup (https://rustup.rs): rustup toolchain install stable && rustup default stable"
  command -v cargo >/dev/null || die "cargo is not installed (or not in PATH); Rust $wanted or later builds Strobe" "$remedy"
  have="$(cd "$STROBE_REPO" && cargo --version | cut -d' ' -f2)"
  version_at_least "$have" "$wanted" || die "cargo is version $have; Strobe needs Rust $wanted or later" "$remedy"
  say "Rust: cargo $have (at least $wanted is needed)"
}

# Tracepoints are named below tracefs; containers and small images often leave it unmounted.
mount_tracefs() {
  [[ -d /sys/kernel/tracing && ! -e /sys/kernel/tracing/events ]] || return 0
  if [[ $EUID -ne 0 ]]; then
    warn "/sys/kernel/tracing is empty; as root: mount -t tracefs tracefs /sys/kernel/tracing"
  elif mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null; then
    say "tracefs: mounted on /sys/kernel/tracing"
  else
    warn "tracefs could not be mounted on /sys/kernel/tracing; tracepoints will be missing"
  fi
}

main() {
  if [[ $# -gt 0 ]]; then
    echo "usage: setup.sh   (no flags; STROBE_HOME, now $STROBE_HOME, says where things go)" >&2
    return 2
  fi
  mkdir -p "$STROBE_HOME/log"
  say "setup: everything goes to $STROBE_HOME, logs to $STROBE_HOME/log"
  # First, since it is the one step that only the user can mend.
  check_rust
  install_packages
  "$HERE/kafka/broker.sh" install
  "$HERE/clickhouse/engine.sh" install
  mount_tracefs
  say "setup: done in $SECONDS s"
}

main "$@"
