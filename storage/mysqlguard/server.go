package mysqlguard

import (
	"context"
	"database/sql"
)

// Server is what matters of a MariaDB for the guard.
type Server struct {
	Version      string
	MariaDB      bool   // and not MySQL
	Snapshots    bool   // it has innodb_snapshot_isolation
	FlushLog     int    // innodb_flush_log_at_trx_commit: 1 is durable
	BinlogFormat string // "" without a binary log
	ReadOnly     bool
	Encrypted    bool // the connection
	Installed    int  // the version of the guard's schema; 0 without one
	Wanted       int  // the version that this package makes
}

const serverSQL = `
SELECT VERSION(), VERSION() LIKE '%MariaDB%',
       (SELECT COUNT(*) FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_NAME = 'INNODB_SNAPSHOT_ISOLATION'),
       @@GLOBAL.innodb_flush_log_at_trx_commit, IF(@@log_bin, @@GLOBAL.binlog_format, ''), @@GLOBAL.read_only,
       (SELECT VARIABLE_VALUE <> '' FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'SSL_CIPHER')`

// ReadServer looks at the server of a URL, and changes nothing.
func ReadServer(ctx context.Context, url string) (s Server, err error) {
	s.Wanted = schemaVersion
	err = withDB(url, func(db *sql.DB) error {
		err := db.QueryRowContext(ctx, serverSQL).Scan(&s.Version, &s.MariaDB, &s.Snapshots, &s.FlushLog, &s.BinlogFormat, &s.ReadOnly, &s.Encrypted)
		if err != nil {
			return err
		}
		s.Installed, err = installedVersion(ctx, db)
		return err
	})
	return s, err
}
