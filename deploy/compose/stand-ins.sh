#!/usr/bin/env bash
# Builds what docker-compose.yml and the Dockerfile need where no registry can be
# reached: images of Debian's packages, called fencelock-check/…. For check.sh.
#
# They stand in for redis, postgres, etcd, prom/prometheus, golang and distroless/static as far
# as these files use them: same users, folders, volumes and commands, other versions. There
# is no Grafana in Debian. Needs Debian or Ubuntu, root, debootstrap and Go.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=${SUITE:-trixie} # its Redis is 8.0, its PostgreSQL 17
mirror=${MIRROR:-http://deb.debian.org/debian}

have() { docker image inspect "fencelock-check/$1" >/dev/null 2>&1; }

# debian imports a root with all packages.
debian() {
	have debian && return
	command -v debootstrap >/dev/null && [ "$(id -u)" = 0 ] || {
		echo "stand-in images need root and debootstrap (apt-get install debootstrap)" >&2
		exit 1
	}
	root=$(mktemp -d) # not local: the trap runs at the end of the script
	trap 'rm -rf "$root"' EXIT
	debootstrap --variant=minbase --include=ca-certificates,redis-server,postgresql,etcd-server,etcd-client,prometheus,git "$suite" "$root" "$mirror" >/dev/null
	cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # this machine's, for a proxy with its own
	tar -C "$root" --exclude=./var/cache/apt --exclude='./proc/*' --exclude='./sys/*' -c . | docker import - fencelock-check/debian >/dev/null
	rm -rf "$root"
}

# image builds one from the Dockerfile on its standard input.
image() { have "$1" || docker build -q -t "fencelock-check/$1" "${@:2}" >/dev/null; }

debian
image redis - <<'D'
FROM fencelock-check/debian
RUN mkdir /data && chown redis:redis /data
VOLUME /data
WORKDIR /data
D
image postgres -f - "$here" <<'D'
FROM fencelock-check/debian
RUN rm -rf /var/lib/postgresql/* && mkdir -p /var/lib/postgresql/data && chown -R postgres:postgres /var/lib/postgresql && chmod 3777 /run/postgresql
ENV PATH=/usr/lib/postgresql/17/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY postgres.sh /postgres.sh
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["/bin/sh", "/postgres.sh"]
D
image etcd - <<'D'
FROM fencelock-check/debian
RUN rm -rf /var/lib/etcd && mkdir /var/lib/etcd && ln -s /usr/bin/etcd /usr/bin/etcdctl /usr/local/bin/
VOLUME /var/lib/etcd
D
image prometheus - <<'D'
FROM fencelock-check/debian
RUN mkdir /prometheus && chown nobody:nogroup /prometheus
USER nobody
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
D
image golang -f - "$(go env GOROOT)" <<'D'
FROM fencelock-check/debian
COPY . /usr/local/go
ENV PATH=/usr/local/go/bin:/usr/bin:/bin GOPATH=/go GOTOOLCHAIN=local
D
image static - <<'D'
FROM fencelock-check/debian AS debian
RUN mkdir -m 1777 /empty
FROM scratch
COPY --from=debian /etc/ssl/certs /etc/ssl/certs
COPY --from=debian /usr/share/ca-certificates /usr/share/ca-certificates
COPY --from=debian /usr/share/zoneinfo /usr/share/zoneinfo
COPY --from=debian /empty /tmp
USER 65532:65532
D
