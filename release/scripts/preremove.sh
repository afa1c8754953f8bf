#!/bin/sh
# Called with "remove" (deb) or 0 (rpm) for a removal, else for an upgrade.
set -e
[ -d /run/systemd/system ] || exit 0
case "$1" in remove | 0) systemctl disable --now fencelock.service ;; esac
