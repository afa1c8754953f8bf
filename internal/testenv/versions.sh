#!/bin/sh
# The servers and languages that the tests find on this machine, a line each.
PATH=$PATH:/usr/sbin
say() { printf '%-12s %s\n' "$1" "$(command -v "$2" >/dev/null && shift && "$@" 2>&1 | head -n 1 || echo 'not here')"; }
echo '== tested with:'
say Go go version
say Redis redis-server --version
say PostgreSQL "$(ls -d /usr/lib/postgresql/*/bin/postgres postgres 2>/dev/null | tail -n 1)" --version
say MariaDB mariadbd --version
say etcd etcd --version
printf '%-12s %s\n' ZooKeeper "$(readlink -f /usr/share/java/zookeeper.jar 2>/dev/null)"
say HAProxy haproxy -v
say nginx nginx -v
say Python python3 --version
say Node node --version
