#!/usr/bin/env bash
# A shell loop of short-lived processes: some SHORTLIVED_PER_SECOND (default 60) of them, most gone within 2 ms.
set -euo pipefail

PER_SECOND="${SHORTLIVED_PER_SECOND:-60}"
[[ $PER_SECOND =~ ^[1-9][0-9]{0,2}$ ]] || {
  echo "shortlived.sh: SHORTLIVED_PER_SECOND is \"$PER_SECOND\": it takes a number from 1 to 999" >&2
  exit 2
}
trap 'exit 0' TERM INT

# A pipe that never gets a byte: reading it with a time limit is a sleep that starts no process.
exec {quiet}<> <(:)

main() {
  local turn=0 next now pause
  local step_us=$((1000000 / PER_SECOND))
  next="${EPOCHREALTIME/[.,]/}"
  while true; do
    case $((turn++ % 4)) in
      0) /bin/true ;;
      1) uname -r ;;
      2) printenv HOME ;;
      3) sh -c : ;;
    esac >/dev/null
    next=$((next + step_us))
    now="${EPOCHREALTIME/[.,]/}"
    if ((now < next)); then
      printf -v pause '0.%06d' "$((next - now))"
      read -rt "$pause" -u "$quiet" || true
    else
      next=$now
    fi
  done
}

main
