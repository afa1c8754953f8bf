package mysqlguard

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"
)

// Server describes the properties of a MariaDB server that matter to the guard.
type Server struct {
	Version      string
	MariaDB      bool   // false for MySQL
	Snapshots    bool   // the server has the variable innodb_snapshot_isolation
	FlushLog     int    // innodb_flush_log_at_trx_commit: 1 is durable
	BinlogFormat string // "" without a binary log
	ReadOnly     bool
	Encrypted    bool // the connection is encrypted
	Installed    int  // version of the guard's schema; 0 if not installed
	Wanted       int  // the version that this package installs
}

const serverSQL = `
SELECT VERSION(), VERSION() LIKE '%MariaDB%',
       (SELECT COUNT(*) FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_NAME = 'INNODB_SNAPSHOT_ISOLATION'),
       @@GLOBAL.innodb_flush_log_at_trx_commit, IF(@@log_bin, @@GLOBAL.binlog_format, ''), @@GLOBAL.read_only,
       (SELECT VARIABLE_VALUE <> '' FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'SSL_CIPHER')`

// ReadServer inspects the server of a URL. It changes nothing.
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

// accessDenied is the server's number for a user or a password that it does not let in.
const accessDenied = 1045

// Admits returns the error of a server that does not let the URL's user in. It returns nil for one
// that cannot be reached, and never shows the URL.
func Admits(ctx context.Context, url string) error {
	err := withDB(url, func(db *sql.DB) error { return db.PingContext(ctx) })
	if refused, ok := asType[*mysql.MySQLError](err); ok && refused.Number != accessDenied {
		return nil
	}
	if errors.As(err, new(*mysql.MySQLError)) || errors.Is(err, errMalformedURL) {
		return err
	}
	return nil
}
