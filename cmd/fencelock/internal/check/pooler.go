package check

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// pooler reports settings of a PgBouncer in front of the database that prolong a short outage of
// Postgres. It can read them only if the pooler's stats_users contains the role.
func (r *Report) pooler(ctx context.Context, subject string, target *pgx.ConnConfig) {
	const longestRetry = time.Second
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if retry := loginRetry(ctx, target); retry > longestRetry {
		r.Add(Risky, subject, "PgBouncer connects to Postgres only every "+retry.String()+" after a failure (server_login_retry): a restart of Postgres that takes a second is an outage that long, and leases lapse",
			"set server_login_retry = 1 in pgbouncer.ini")
	}
}

// loginRetry returns the pooler's server_login_retry: 0 without a pooler, or if the role may not read it.
func loginRetry(ctx context.Context, target *pgx.ConnConfig) time.Duration {
	console := target.Copy()
	console.Database = "pgbouncer"
	console.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // the console supports no other mode
	conn, err := pgx.ConnectConfig(ctx, console)
	if err != nil {
		return 0
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, "SHOW CONFIG")
	if err != nil {
		return 0
	}
	defer rows.Close()
	for rows.Next() {
		if values := rows.RawValues(); len(values) > 1 && string(values[0]) == "server_login_retry" {
			seconds, err := strconv.ParseFloat(string(values[1]), 64)
			if err != nil {
				return 0
			}
			return time.Duration(seconds * float64(time.Second))
		}
	}
	return 0
}
