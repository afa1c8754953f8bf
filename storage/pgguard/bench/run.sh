#!/usr/bin/env bash
# What the guard costs in Postgres: pgbench, guarded and plain side by side, on
# a private server that syncs to disk. Prints a Markdown table.
#
#   RUNS=5 SECONDS_EACH=3 storage/pgguard/bench/run.sh
#
# Guarded and plain runs alternate, so that whatever else the machine does
# hits both; the ratio is the median of the ratios of neighbours.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
runs=${RUNS:-5}
seconds=${SECONDS_EACH:-3}
initdb=$(command -v initdb || ls -d /usr/lib/postgresql/*/bin/initdb /opt/homebrew/opt/postgresql*/bin/initdb 2>/dev/null | sort -V | tail -1)
bin=${PGBIN:-$(dirname "$(readlink -f "$initdb")")}
command -v pgbench >/dev/null || PATH=$bin:$PATH

dir=$(mktemp -d)
as=()
if [ "$(id -u)" = 0 ]; then # initdb refuses to run as root
    chown postgres "$dir"
    as=(runuser -u postgres --)
fi
stop() {
    "${as[@]}" "$bin/pg_ctl" -D "$dir/data" -m immediate -w stop >/dev/null 2>&1 || true
    rm -rf "$dir"
}
trap stop EXIT
cd "$dir"
"${as[@]}" "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --no-locale >/dev/null
"${as[@]}" "$bin/pg_ctl" -D "$dir/data" -o "-c listen_addresses='' -k $dir -c max_wal_size=4GB -c checkpoint_timeout=30min" -l "$dir/log" -w start >/dev/null
export PGHOST=$dir PGUSER=postgres PGDATABASE=postgres

(cd "$here" && ${FENCELOCK:-go run github.com/fencelock/fencelock/cmd/fencelock} guard sql) | "$bin/psql" -qX -v ON_ERROR_STOP=1 >/dev/null
"$bin/psql" -qX -v ON_ERROR_STOP=1 >/dev/null <<'SQL'
CREATE TABLE plain (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0, filler text DEFAULT repeat('x', 80)) WITH (fillfactor = 80);
CREATE TABLE guarded (LIKE plain INCLUDING ALL) WITH (fillfactor = 80);
INSERT INTO plain SELECT generate_series(1, 10000);
INSERT INTO guarded SELECT generate_series(1, 10000);
SELECT fencing.protect('guarded', $$'accounts/' || id$$);
SELECT count(fencing.claim('accounts/' || id, 34)) FROM guarded;
VACUUM ANALYZE;
SQL

# Measures one script for the given number of clients: transactions a second.
tps() {
    pgbench -n -M prepared -c "$1" -j 2 -T "$seconds" -f "$here/$2.sql" 2>"$dir/errors" |
        awk '/^tps/ {print $3}' || { cat "$dir/errors" >&2; exit 1; }
}

# Runs the scripts in turn, and prints a table's line for each but the first.
compare() {
    local clients=$1 plain=$2 guarded
    shift 2
    for _ in $(seq "$runs"); do
        for s in "$plain" "$@"; do echo "$s $(tps "$clients" "$s")"; done
        "$bin/psql" -qX -c 'VACUUM plain, guarded, fencing.marks'
    done >"$dir/results"
    for guarded in "$@"; do
        awk -v clients="$clients" -v plain="$plain" -v guarded="$guarded" '
            function median(list, n,   i, j, t) {
                for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (list[j] < list[i]) {t = list[i]; list[i] = list[j]; list[j] = t}
                return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
            }
            $1 == plain {p[++n] = $2}
            $1 == guarded {g[n] = $2; r[n] = p[n] / $2}
            END {
                gsub("_", " ", plain); gsub("_", " ", guarded)
                printf "| %d | %s | %.0f | %s | %.0f | %.2f |\n", clients, plain, median(p, n), guarded, median(g, n), median(r, n)
            }' "$dir/results"
    done
}

echo "PostgreSQL $("$bin/psql" -AtX -c 'SHOW server_version'), $(nproc) cores, $runs runs of $seconds s each, median"
echo
echo "| clients | plain | tps | guarded | tps | times as costly |"
echo "| ---: | --- | ---: | --- | ---: | ---: |"
for clients in 1 16; do
    compare "$clients" plain_update set_config_update claim_update
    compare "$clients" plain_transaction claim_transaction
done
