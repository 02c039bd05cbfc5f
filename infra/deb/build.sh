#!/usr/bin/env bash
# Builds the Debian packages strobe-agent and strobe, with cargo-deb, from the executables of `make build`.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"
cd "$STROBE_REPO"

CARGO_DEB_VERSION=3.8.0
TARGET="${CARGO_TARGET_DIR:-$STROBE_REPO/target}"
OUTPUT="${STROBE_DEB_OUTPUT:-$TARGET/debian}"
export PATH="$STROBE_HOME/tools/bin:$PATH"

install_cargo_deb() {
  [[ "$(cargo-deb --version 2>/dev/null)" == *"$CARGO_DEB_VERSION"* ]] && return
  # With little optimization: it runs for some seconds, and building it should not take longer than need be.
  run_step "cargo-deb $CARGO_DEB_VERSION: building it, once" "$STROBE_HOME/log/cargo-deb.log" \
    env CARGO_TARGET_DIR="$STROBE_HOME/tools/build" CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
    cargo install cargo-deb --version "$CARGO_DEB_VERSION" --locked --root "$STROBE_HOME/tools"
  rm -rf "$STROBE_HOME/tools/build"
}

# package CRATE EXECUTABLE NAME - manual pages and completions come from the command line itself.
package() {
  local crate="$1" executable="$2" name="$3"
  [[ -x $TARGET/release/$executable ]] || die "$TARGET/release/$executable is not built" "make build"
  rm -rf "$TARGET/release/deb/$name"
  "$TARGET/release/$executable" generate "$TARGET/release/deb/$name"
  # cargo-deb would do it too, with an encoder that takes seconds for each page.
  gzip -9n "$TARGET/release/deb/$name"/*.1
  run_step "deb: $crate" "$STROBE_HOME/log/deb-$name.log" \
    cargo deb --no-build --package "$crate" --output "$OUTPUT/" ${STROBE_DEB_FAST:+--fast} ${STROBE_DEB_VERSION:+--deb-version "$STROBE_DEB_VERSION"}
}

main() {
  if [[ $# -gt 0 ]]; then
    echo "usage: deb/build.sh   (no flags; packages go to $OUTPUT; STROBE_DEB_VERSION is the version, else Cargo.toml's; STROBE_DEB_FAST=1 compresses less)" >&2
    return 2
  fi
  install_cargo_deb
  mkdir -p "$OUTPUT"
  package strobe-agent strobe-agent agent
  package strobe strobe strobe
  ls -1 "$OUTPUT"/*.deb
}

main "$@"
