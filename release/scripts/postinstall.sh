#!/bin/sh
# The service is not started by the installation: it would not know its nodes yet. An
# upgrade restarts it if it runs.
set -e
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
systemctl try-restart fencelock.service
