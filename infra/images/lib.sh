# shellcheck shell=bash
# What the scripts that speak with a container engine share. Source it after infra/lib.sh; it does nothing by itself.

# require_engine - dies with the remedy where none answers.
require_engine() {
  command -v docker >/dev/null || die "docker is not installed" "apt-get install docker.io docker-compose"
  docker info >/dev/null 2>&1 || die "no container engine answers" \
    "start one (systemctl start docker), or a private one: eval \"\$(infra/images/engine.sh start)\""
}

# knows_cap_bpf IMAGE - whether the engine can name the capabilities that the agent needs. Debian 12's cannot: its list ends
# before those of Linux 5.8. There the agent gets CAP_SYS_ADMIN instead, which they were split from.
knows_cap_bpf() {
  local id
  id="$(docker create --cap-drop ALL --cap-add BPF "$1" 2>/dev/null)" || return 1
  docker rm "$id" >/dev/null
}
