#!/usr/bin/env bash
# Makes what a closed bus needs, for one host and for tests: an authority, the broker's certificate, a password per principal.
# A site has its own authority and its own way to hand out passwords; this shows which files are wanted.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"

# The processes of Strobe, and who administers the broker.
PRINCIPALS=(admin strobe-agent strobe-processor strobe-sink strobe-tuner strobe-trigger strobe-alerts strobe-asker strobe-setup strobe-reader)
DAYS="${STROBE_CERTIFICATE_DAYS:-365}"

usage() {
  cat <<USAGE
usage: secrets.sh DIR [HOST...]

  DIR/ca.pem               the authority, for \`ssl.ca.location\`
  DIR/broker.pem           the broker's key and certificate, for HOST... (localhost, 127.0.0.1)
  DIR/PRINCIPAL.password   one for each of: ${PRINCIPALS[*]}

What is there stays. STROBE_CERTIFICATE_DAYS ($DAYS) is how long certificates hold. Then: broker.sh start --secure DIR
USAGE
}

# certificate DIR NAME HOST... - DIR/NAME.pem: a PKCS#8 key and a certificate by the authority of DIR.
certificate() {
  local dir="$1" name="$2" host names=()
  shift 2
  for host in "$@"; do
    if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then names+=("IP:$host"); else names+=("DNS:$host"); fi
  done
  openssl req -new -newkey rsa:2048 -nodes -subj "/CN=$name" -keyout "$dir/$name.key" -out "$dir/$name.csr" 2>/dev/null
  openssl x509 -req -in "$dir/$name.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial -days "$DAYS" \
    -extfile <(printf 'subjectAltName=%s\n' "$(IFS=,; echo "${names[*]}")") -out "$dir/$name.crt" 2>/dev/null
  cat "$dir/$name.key" "$dir/$name.crt" >"$dir/$name.pem"
  rm "$dir/$name.key" "$dir/$name.csr" "$dir/$name.crt"
}

main() {
  local dir="${1:-}" principal
  case "$dir" in
    -h | --help | help) usage; return ;;
    "" | -*) usage >&2; return 2 ;;
  esac
  shift
  [[ $# -gt 0 ]] || set -- localhost 127.0.0.1
  command -v openssl >/dev/null || die "openssl is not installed" "apt-get install openssl"
  umask 077
  mkdir -p "$dir"
  if [[ ! -e $dir/ca.pem ]]; then
    openssl req -x509 -newkey rsa:2048 -nodes -subj "/CN=Strobe's own authority" -days "$DAYS" -keyout "$dir/ca.key" \
      -out "$dir/ca.pem" 2>/dev/null
  fi
  [[ -e $dir/broker.pem ]] || certificate "$dir" broker "$@"
  for principal in "${PRINCIPALS[@]}"; do
    [[ -e $dir/$principal.password ]] || head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$dir/$principal.password"
  done
  say "kafka: secrets are in $dir"
}

main "$@"
