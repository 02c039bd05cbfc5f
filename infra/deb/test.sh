#!/usr/bin/env bash
# shellcheck disable=SC2016
# (Shells inside the tree expand what stands in single quotes.)
# Installs, starts, upgrades, removes and purges both packages in a fresh Debian tree, and looks at files, rights and processes.
# No service manager runs in the tree: the test starts the agent as its unit says (user, capabilities, commands), and listens
# where the manager would.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"

TREE="$STROBE_HOME/test/deb-tree"
# A Debian that was made once; each run takes a copy.
BASE="$STROBE_HOME/test/deb-base"
PACKAGES="$STROBE_HOME/test/deb-packages"
LOG="$STROBE_HOME/log/test-deb.log"
passed=0 failed=0

# As the test runner does it: counted as passed, and taken out again by the line that says why.
skip() { printf 'skipped: packages: %s\ntest result: ok. 1 passed; 0 failed;\n' "$1"; exit 0; }

# check SENTENCE COMMAND... - one claim.
check() {
  local sentence="$1"
  shift
  if "$@" >>"$LOG" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAILED: %s\n  (%s)\n' "$sentence" "$*"
  fi
}

inside() { chroot "$TREE" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }

# has MODE OWNER PATH - what lies in the tree.
has() { [[ "$(inside stat -c '%a %U:%G' "$3")" == "$1 $2" ]]; }
not() { ! "$@"; }
contains() { [[ "$1" == *"$2"* ]]; }

# of_unit KEY - a setting of the installed unit.
of_unit() { sed -n "s/^$1=//p" "$TREE/lib/systemd/system/strobe-agent.service" "$TREE/usr/lib/systemd/system/strobe-agent.service" 2>/dev/null | head -n 1; }

# starts_as_the_unit_says - runs the agent for a moment with the user and capabilities of its unit; READY=1 must arrive.
starts_as_the_unit_says() {
  local user capabilities
  user="$(of_unit User)"
  capabilities="$(of_unit AmbientCapabilities | tr '[:upper:]' '[:lower:]' | sed 's/cap_/+/g; s/ /,/g')"
  python3 "$HERE/notified.py" "$TREE/run/notify" 20 READY=1 -- \
    chroot "$TREE" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs \
    --inh-caps="-all,$capabilities" --ambient-caps="$capabilities" --bounding-set="-all,$capabilities" -- \
    /usr/bin/strobe-agent run --no-publish
}

base() {
  [[ -x $BASE/usr/sbin/adduser ]] && return
  rm -rf "$BASE"
  run_step "deb: making a fresh Debian" "$STROBE_HOME/log/test-deb-base.log" \
    debootstrap --variant=minbase --include=adduser,ca-certificates,libelf1,libssl3,zlib1g,init-system-helpers bookworm "$BASE"
}

unmount() { local at; for at in sys proc dev; do umount -l "$TREE/$at" 2>/dev/null || true; done; }

main() {
  local program version=0.1.0 next=0.1.1
  for program in debootstrap setpriv chroot python3; do
    command -v "$program" >/dev/null || skip "$program is not installed: apt-get install $program"
  done
  PATH="$STROBE_HOME/tools/bin:$PATH" command -v cargo-deb >/dev/null || skip "cargo-deb is not installed: make deb builds it"
  [[ $EUID -eq 0 ]] || skip "a Debian tree takes root"
  mkdir -p "${LOG%/*}" "$STROBE_HOME/test"
  : >"$LOG"
  base
  unmount
  rm -rf "$TREE" "$PACKAGES"
  cp -a --reflink=auto "$BASE" "$TREE"
  trap unmount EXIT
  mount --bind /proc "$TREE/proc"
  mount --bind /sys "$TREE/sys"
  mount --bind /dev "$TREE/dev"
  export STROBE_DEB_FAST=1
  STROBE_DEB_OUTPUT="$PACKAGES" STROBE_DEB_VERSION="$version" "$HERE/build.sh"
  STROBE_DEB_OUTPUT="$PACKAGES" STROBE_DEB_VERSION="$next" "$HERE/build.sh"
  cp "$PACKAGES"/*.deb "$TREE/root/"

  check "both packages install" inside sh -c "dpkg -i /root/*_${version}*.deb"
  check "the executables start" inside strobe --version
  check "the agent's starts" inside strobe-agent --version
  check "configuration is root's, and everybody may read it" has 644 root:root /etc/strobe/agent.toml
  check "the tool's as well" has 644 root:root /etc/strobe/strobe.toml
  check "password files lie where only root and the services look" has 750 root:strobe /etc/strobe/secrets
  check "the agent's state is its own" has 750 strobe-agent:strobe-agent /var/lib/strobe-agent
  check "the symbol store is shared by the two that need it" has 2770 root:strobe-symbols /var/lib/strobe-symbols
  check "the agent's user can neither log in" contains "$(inside getent passwd strobe-agent)" :/usr/sbin/nologin
  check "nor can the services'" contains "$(inside getent passwd strobe)" :/usr/sbin/nologin
  check "manual pages are there" inside test -s /usr/share/man/man1/strobe-top.1.gz
  check "the agent's as well" inside test -s /usr/share/man/man1/strobe-agent-run.1.gz
  check "completions are there" inside grep -q strobe /usr/share/bash-completion/completions/strobe
  check "three units are there" inside sh -c 'test $(ls /lib/systemd/system/strobe-*.service | wc -l) = 3'
  check "nothing is enabled before somebody configured it" not inside sh -c 'ls /etc/systemd/system/*.wants/strobe-*'
  check "the configuration as installed is right" inside strobe --config /etc/strobe/strobe.toml config check processor
  if [[ -e /sys/kernel/btf/vmlinux ]]; then
    check "the agent starts as its unit says, and tells the service manager" starts_as_the_unit_says
    check "what it keeps is its user's" inside sh -c 'test "$(stat -c %U /var/lib/strobe-agent/spool)" = strobe-agent'
  else
    passed=$((passed + 1))
    printf 'skipped: packages: starting the agent needs a kernel with BTF\n'
  fi

  inside sh -c 'echo "# mine" >>/etc/strobe/agent.toml'
  check "both upgrade" inside sh -c "dpkg -i /root/*_${next}*.deb"
  check "a changed configuration is kept" inside grep -q '# mine' /etc/strobe/agent.toml
  check "the new version is in place" contains "$(inside dpkg-query -W -f '${Version}' strobe-agent)" "$next"
  check "both go back" inside sh -c "dpkg -i /root/*_${version}*.deb"
  check "and the old version is in place again" contains "$(inside dpkg-query -W -f '${Version}' strobe)" "$version"

  check "both are removed" inside dpkg -r strobe-agent strobe
  check "executables are gone" not inside sh -c 'ls /usr/bin/strobe*'
  check "units are gone" not inside sh -c 'ls /lib/systemd/system/strobe-*'
  check "configuration stays when removed" inside grep -q '# mine' /etc/strobe/agent.toml
  check "what was recorded stays when removed" inside test -d /var/lib/strobe-agent
  check "both are purged" inside dpkg -P strobe-agent strobe
  check "nothing is left but the users" not inside sh -c 'ls -d /etc/strobe /etc/default/strobe* /var/lib/strobe*'
  check "no process is left" not pgrep -f "$TREE"

  unmount
  rm -rf "$TREE" "$PACKAGES"
  printf 'test result: %s. %d passed; %d failed;\n' "$([[ $failed == 0 ]] && echo ok || echo FAILED)" "$passed" "$failed"
  ((failed == 0))
}

main "$@"
