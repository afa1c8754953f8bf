#!/bin/sh
# The state in /var/lib/fencelock stays, also after a purge: it holds who has which lock.
set -e
if [ "$1" = purge ]; then rmdir /etc/fencelock 2>/dev/null || true; fi
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
