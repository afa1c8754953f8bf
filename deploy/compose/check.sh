#!/usr/bin/env bash
# Runs docker-compose.yml for real, as make compose-check, on any machine with Docker and
# its Compose plugin (2.24 or newer), and prints how long each start takes:
#
#   up, the README's four calls, two Redis stopped, down, up again, up with three Redis of
#   five, down; Prometheus and Grafana with the shipped rules and dashboard; then
#   compose-postgres.yml: up, the calls, Postgres killed, down, up again; compose-etcd.yml:
#   up, a lock, one etcd of three stopped, two killed, down, up again. Only these parts:
#   check.sh postgres, check.sh etcd
#
# With the images that the file names, by digest, where their registries can be reached;
# else with stand-ins of Debian's packages (stand-ins.sh). It says which. It uses a project
# of its own (fencelock-check), whose containers and volumes it removes, and other ports.
set -euo pipefail
cd "$(dirname "$0")/../.."
export FENCELOCK_PORT=${FENCELOCK_PORT:-18080} PROMETHEUS_PORT=${PROMETHEUS_PORT:-19090} GRAFANA_PORT=${GRAFANA_PORT:-13000}
files=(-f docker-compose.yml)
log=$(mktemp)
wait_of_restart=60 # FENCELOCK_MAX_TTL
slack=45           # seconds by which two starts may differ on a slow machine

say() { printf '%s\n' "$*"; }
fail() {
	say "FAILED: $*" >&2
	tail -n 20 "$log" >&2
	exit 1
}
compose() { docker compose -p fencelock-check "${files[@]}" "$@"; }
end() { compose --profile monitoring down -v --remove-orphans >/dev/null 2>&1 || true; rm -f "$log"; }

# quiet keeps the output of a command for fail.
quiet() { "$@" >"$log" 2>&1 || fail "$*"; }

# pull gets every image of the two files, or says why not. A registry that answers and
# does not have one is an error of the files.
pull() {
	local image
	while read -r image; do
		if ! docker pull -q "$image" >"$log" 2>&1; then
			grep -qiE 'manifest unknown|not found|invalid reference|denied' "$log" && ! grep -qi 'no such host' "$log" && fail "no registry has $image"
			say "cannot be pulled: $image: $(tail -n 1 "$log")"
			return 1
		fi
		say "pulled $image"
	done < <(sed -nE 's/^ *image: (.*@sha256:.*)/\1/p; s/^ARG [A-Z]+_IMAGE=(.*)/\1/p' "${files[1]}" Dockerfile | sort -u)
}

# timed prints how long a start takes, and leaves the seconds in $took.
timed() {
	local what=$1 begun=$SECONDS
	shift
	compose "$@" >"$log" 2>&1 || { compose logs --tail 20 >>"$log" 2>&1; fail "$what: docker compose $*"; }
	took=$((SECONDS - begun))
	say "$(printf '%4d s  %s' "$took" "$what")"
}

# readme runs the README's four calls, the last of which must be refused.
readme() {
	local calls out
	calls=$(awk '/^api=http/ {on=1} /^```/ {on=0} on' README.md | sed "s/127.0.0.1:8080/127.0.0.1:$FENCELOCK_PORT/g")
	out=$(bash -c "$calls" 2>&1)
	grep -q '200 OK' <<<"$out" && grep -q '412 Precondition Failed' <<<"$out" || { say "$out" >"$log"; fail "the README's calls $1"; }
	say "        the README's calls $1: 200, then 412"
}

nodes() { compose exec -T fencelock /fencelock nodes "$@"; }

# eventually repeats a command for a minute, until it succeeds.
eventually() {
	local what=$1 deadline=$((SECONDS + 60))
	shift
	until "$@" >"$log" 2>&1; do
		((SECONDS < deadline)) || fail "$what"
		read -rt 1 <> <(:) || true
	done
	say "        $what"
}

# A pipe into grep -q would fail when grep ends first.
prometheus_has() { [[ $(curl -sfG "http://127.0.0.1:$PROMETHEUS_PORT/api/v1/query" --data-urlencode "query=$1") == *'"result":[{'* ]]; }
rules_loaded() { [[ $(curl -sf "http://127.0.0.1:$PROMETHEUS_PORT/api/v1/rules") == *FencelockNoQuorum* ]]; }
grafana_has() { [[ $(curl -sf "http://127.0.0.1:$GRAFANA_PORT/api/dashboards/uid/fencelock") == *'"title":"fencelock"'* ]]; }

# hardened fails for a container that may do more than it needs. Those with
# the text in their names may run as root.
hardened() {
	local id bad roots=${1:-no container}
	for id in $(compose --profile monitoring ps -aq); do
		bad=$(docker inspect "$id" --format '{{if not .HostConfig.ReadonlyRootfs}}its files can be changed. {{end}}{{if ne (printf "%v" .HostConfig.CapDrop) "[ALL]"}}it has capabilities. {{end}}{{if ne (printf "%v" .HostConfig.SecurityOpt) "[no-new-privileges:true]"}}it may get privileges. {{end}}{{if eq .HostConfig.Memory 0}}its memory has no limit. {{end}}{{if or (eq .Config.User "") (eq .Config.User "root")}}it runs as root. {{end}}{{if .State.OOMKilled}}it ran out of memory. {{end}}')
		[[ $bad != "it runs as root. " || $(docker inspect "$id" --format '{{.Name}}') != *$roots* ]] || bad=
		[ -z "$bad" ] || fail "$(docker inspect "$id" --format '{{.Name}}'): $bad"
	done
	say "        every container: read-only, no capabilities, no new privileges, a memory limit, not root${1:+ but for those of $1}"
}

# no_volume_left fails if the cycles left a volume that has no name in the file.
no_volume_left() {
	local left
	left=$(docker volume ls -q --filter label=com.docker.compose.project=fencelock-check | grep -v '^fencelock-check_' || true)
	left+=$(comm -13 <(printf '%s\n' "$volumes_before") <(docker volume ls -q | grep -v '^fencelock-check_' | sort))
	[ -z "$left" ] || fail "volumes are left behind: $left"
	say "        no volume without a name is left behind"
}

# postgres runs compose-postgres.yml, which keeps locks and records in one Postgres.
postgres() {
	files[1]=deploy/compose-postgres.yml
	timed "compose-postgres.yml: build" build fencelock
	timed "compose-postgres.yml: first start" up --wait fencelock
	hardened
	readme "with one Postgres"
	compose kill -s KILL postgres >"$log" 2>&1 || fail "kill Postgres"
	timed "Postgres is started after kill -9" up --wait postgres
	eventually "the service is ready again" curl -sf -o /dev/null "http://127.0.0.1:$FENCELOCK_PORT/readyz"
	readme "after kill -9 of Postgres"
	quiet compose down
	timed "start after down, with the earlier locks" up --wait fencelock
	readme "after the restart"
	nodes | tail -n 1
	quiet compose down -v --remove-orphans
	no_volume_left
}

# locks takes and releases a lock.
locks() {
	local api=http://127.0.0.1:$FENCELOCK_PORT lease
	lease=$(curl -sf "$api/locks" -H 'Content-Type: application/json' -d '{"resource":"orders/42","holder":"check","ttl_ms":5000}' | sed -nE 's/.*"lease_id": ?"([^"]+)".*/\1/p')
	[ -n "$lease" ] && curl -sf -o /dev/null -X DELETE -H "Fencelock-Lease: $lease" "$api/leases/current"
}

# etcd runs compose-etcd.yml, which keeps locks in three etcd, and no records.
etcd() {
	files[1]=deploy/compose-etcd.yml
	[ -z "${files[2]:-}" ] || files[3]=deploy/compose/stand-ins-etcd.yaml
	timed "compose-etcd.yml: build" build fencelock
	timed "compose-etcd.yml: first start" up --wait
	hardened etcd
	locks || fail "no lock with three etcd"
	timed "etcd-1 stops" stop etcd-1
	eventually "a lock with two etcd of three" locks
	compose kill -s KILL etcd-2 >"$log" 2>&1 || fail "kill etcd-2"
	! locks || fail "a lock with one etcd of three"
	say "        no lock with one etcd of three"
	timed "etcd-1 and etcd-2 are started" up --wait etcd-1 etcd-2
	eventually "a lock with three etcd" locks
	quiet compose down
	timed "start after down, with the earlier locks" up --wait
	locks || fail "no lock after the restart"
	nodes | tail -n 1
	quiet compose down -v --remove-orphans
	no_volume_left
}

docker compose version --short 2>/dev/null | grep -qE '^v?([3-9]|2\.(2[4-9]|[3-9][0-9]))' || fail "this needs the Compose plugin, 2.24 or newer (docker compose version)"
trap end EXIT
end
volumes_before=$(docker volume ls -q | sort)
monitoring=(prometheus grafana)
case ${1:-} in
'') ;;
postgres | etcd) files[1]=deploy/compose-$1.yml ;;
*) fail "what is $1? There are postgres and etcd" ;;
esac
if pull; then
	say "images: those of docker-compose.yml, by digest"
else
	say "images: stand-ins of Debian's packages, since a registry cannot be reached; without Grafana, which Debian does not have."
	say "        The digests in docker-compose.yml and the Dockerfile are NOT checked by this run."
	files+=(-f deploy/compose/stand-ins.yaml)
	monitoring=(prometheus)
	quiet deploy/compose/stand-ins.sh
fi
if [ -n "${1:-}" ]; then
	"$1"
	say "compose-check: done"
	exit
fi

timed "build of the Dockerfile" build
timed "first start" up --wait
first=$took
hardened
readme "with five Redis"
nodes | tail -n 1
timed "Prometheus${monitoring[1]:+ and Grafana}" --profile monitoring up --wait "${monitoring[@]}"
eventually "Prometheus reaches the metrics" prometheus_has 'up{job="fencelock"} == 1 and on() fencelock_ready == 1'
eventually "Prometheus has the rules" rules_loaded
[ -z "${monitoring[1]:-}" ] || eventually "Grafana has the dashboard" grafana_has
hardened
timed "redis-1 and redis-2 stop" stop redis-1 redis-2
readme "with three Redis"
timed "redis-1 and redis-2 start" up --wait redis-1 redis-2

quiet compose --profile monitoring down
no_volume_left
timed "start after down: the quarantine of ${wait_of_restart} s, and the time of a start" up --wait
[[ $(compose logs fencelock) == *'once the longest TTL'* ]] || fail "the log does not say what the start waits for"
((took <= first + wait_of_restart + slack)) || fail "a start after down takes $took s, the first one took $first s"
readme "after the restart"

quiet compose down
timed "start after down with three Redis of five" up --wait --scale redis-4=0 --scale redis-5=0
readme "with three Redis from the start"
nodes | tail -n 1
quiet compose down -v --remove-orphans
no_volume_left
postgres
etcd
say "compose-check: done"
