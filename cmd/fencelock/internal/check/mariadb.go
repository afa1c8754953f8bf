package check

import (
	"context"
	"net/url"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cause"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

// mariadb checks the guard's MariaDB.
func (r *Report) mariadb(ctx context.Context, subject, text string) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s, err := mysqlguard.ReadServer(ctx, text)
	if err != nil {
		r.Add(Wrong, subject, "the database "+cause.InWords(err), "start it, or correct the address, user, password or database")
		return
	}
	r.lookedf("MariaDB %s", s.Version)
	if u, err := url.Parse(text); err == nil && !isLocal(u.Hostname()) && !s.Encrypted {
		r.Add(Risky, subject, "the connection is unencrypted", "add tls=true to the URL")
	}
	if !s.MariaDB || !s.Snapshots {
		r.Add(Wrong, subject, "it is "+s.Version+": MariaDB 10.11.8 or newer is needed", "use another server")
	}
	if s.ReadOnly {
		r.Add(Wrong, subject, "it is read_only, which takes no writes", "name the primary")
	}
	if s.BinlogFormat == "STATEMENT" {
		r.Add(Wrong, subject, "binlog_format is STATEMENT: a replica cannot repeat claims", "set it to MIXED or ROW")
	}
	if s.FlushLog != 1 {
		r.Add(Wrong, subject, "innodb_flush_log_at_trx_commit is not 1: a crash can lose marks, and a stale token is then accepted", "set it to 1")
	}
}
