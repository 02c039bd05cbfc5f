#!/usr/bin/env bash
# A shell script that counts words, at about a tenth of one core: the distribution's bash keeps no frame pointers.
set -euo pipefail
trap 'exit 0' TERM INT

# A pipe that never gets a byte: reading it with a time limit is a sleep that starts no process.
exec {quiet}<> <(:)
words=(alpha beta gamma delta epsilon zeta eta theta)

count_words() {
  local -A counts=()
  local i word
  for ((i = 0; i < 400; i++)); do
    word="${words[i * $1 % ${#words[@]}]}"
    counts[$word]=$((${counts[$word]:-0} + 1))
  done
}

for ((turn = 1; ; turn++)); do
  count_words "$turn"
  read -rt 0.03 -u "$quiet" || true
done
