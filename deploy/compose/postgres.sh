#!/bin/sh
# What docker-compose.yml needs of the entrypoint of the image postgres: the first start
# makes the database cluster with POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB.
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
	chmod 700 "$data"
	echo "$POSTGRES_PASSWORD" >/tmp/password
	"$bin/initdb" -D "$data" -U "$POSTGRES_USER" -A scram-sha-256 --pwfile=/tmp/password -E UTF8 --locale=C
	rm /tmp/password
	echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
	# Like the image's, this server without TCP must not look ready.
	"$bin/pg_ctl" -D "$data" -w -o "-c listen_addresses=''" start
	PGPASSWORD=$POSTGRES_PASSWORD "$bin/createdb" -h /run/postgresql -U "$POSTGRES_USER" "$POSTGRES_DB" || [ "$POSTGRES_DB" = "$POSTGRES_USER" ]
	"$bin/pg_ctl" -D "$data" -w stop
fi
exec "$bin/postgres" -D "$data" -c "listen_addresses=*"
