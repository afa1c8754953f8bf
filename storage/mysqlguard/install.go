package mysqlguard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"
)

// schemaVersion is the version that the end of schema.sql writes into fencing_version.
const schemaVersion = 2

// installTimeout bounds the creation of the schema, including the wait for other servers.
const installTimeout = 30 * time.Second

//go:embed schema.sql
var schema string

// SQL is the guard as one script for the mariadb client, which can be run again.
func SQL() string { return schema }

// Install creates the guard in the database of the URL, or upgrades it to this version. It is idempotent, and
// safe to run from many places at once. MariaDB has no transactions around such statements; if an installation
// breaks off, run it again to complete it. The user needs ALL on the database. If log_bin is on, it also needs
// SUPER, or the setting log_bin_trust_function_creators.
func Install(ctx context.Context, url string) error {
	return withDB(url, func(db *sql.DB) error { return runScript(ctx, db) })
}

func withDB(url string, do func(*sql.DB) error) (err error) {
	opts, err := Options{}.withDefaults()
	if err != nil {
		return err
	}
	db, err := open(url, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return do(db)
}

func runScript(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	return onConn(ctx, db, func(conn *sql.Conn) error {
		var version string
		if err := conn.QueryRowContext(ctx, `SELECT VERSION()`).Scan(&version); err != nil {
			return err
		}
		if !strings.Contains(version, "MariaDB") {
			return fmt.Errorf("the guard needs MariaDB: MySQL (this is %s) cannot make triggers in a procedure", version)
		}
		for _, statement := range statements(schema) {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("install the guard: %w", err)
			}
			if strings.HasPrefix(statement, namesTurn) {
				if err := takeTurn(ctx, conn); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// onConn runs do on a connection that is closed afterwards, since do leaves locks and settings on it.
func onConn(ctx context.Context, db *sql.DB, do func(*sql.Conn) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	err = do(conn)
	_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // makes the pool close it
	return err
}

// namesTurn begins the statement of schema.sql after which the lock of takeTurn exists. Many servers may run
// the statements before it at the same time.
const namesTurn = "INSERT IGNORE INTO fencing_turn"

// takeTurn takes the lock under which the guard is changed, as the procedure
// fencing_lock_schema does, until the connection ends.
func takeTurn(ctx context.Context, conn *sql.Conn) error {
	var got sql.NullBool
	if err := conn.QueryRowContext(ctx, `SELECT GET_LOCK((SELECT name FROM fencing_turn), ?)`, installTimeout/time.Second).Scan(&got); err != nil {
		return err
	}
	if !got.Bool {
		return errors.New("another connection is installing the guard in this database")
	}
	return nil
}

// statements splits a script for the mariadb client, in which DELIMITER changes the end mark of a statement.
func statements(script string) (list []string) {
	delimiter, text := ";", ""
	for line := range strings.Lines(script) {
		if to, ok := strings.CutPrefix(strings.TrimSpace(line), "DELIMITER "); ok {
			delimiter = to
			continue
		}
		text += line
		if body, ok := strings.CutSuffix(strings.TrimSpace(text), delimiter); ok {
			list, text = append(list, body), ""
		}
	}
	return list
}

// install does nothing if the installed guard is new enough. It then only needs the right to read the version,
// so a service may run under a user that may change nothing.
func install(ctx context.Context, db *sql.DB) error {
	installed, err := installedVersion(ctx, db)
	if err != nil {
		return fmt.Errorf("read the version of the guard: %w", err)
	}
	if installed >= schemaVersion {
		return nil
	}
	return runScript(ctx, db)
}

// installedVersion returns the version of the schema, or 0 without one.
func installedVersion(ctx context.Context, db *sql.DB) (int, error) {
	var installed sql.NullInt64
	err := db.QueryRowContext(ctx, `SELECT MAX(version) FROM fencing_version`).Scan(&installed)
	if schemaGone(err) {
		err = nil
	}
	return int(installed.Int64), err
}

// Uninstall removes the guard: the marks, the guarded records, and the protection of every
// table. It is idempotent.
func Uninstall(ctx context.Context, url string) error {
	return withDB(url, func(db *sql.DB) error {
		return onConn(ctx, db, func(conn *sql.Conn) error {
			if err := takeTurn(ctx, conn); err != nil && !schemaGone(err) {
				return err
			}
			drops, err := texts(ctx, conn, dropsSQL)
			if err != nil {
				return err
			}
			for _, drop := range drops {
				if _, err := conn.ExecContext(ctx, drop); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// dropsSQL selects the statements that remove the guard. Triggers come first, so that no write runs a trigger
// whose tables are gone.
const dropsSQL = `
SELECT CONCAT('DROP TRIGGER IF EXISTS ', TRIGGER_NAME) FROM information_schema.TRIGGERS
 WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME REGEXP '^fencing_[0-9]+_(insert|update|delete)$'
UNION ALL
SELECT CONCAT('DROP ', ROUTINE_TYPE, ' IF EXISTS ', ROUTINE_NAME) FROM information_schema.ROUTINES
 WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME LIKE 'fencing\\_%'
UNION ALL
SELECT CONCAT('DROP ', IF(TABLE_TYPE = 'SEQUENCE', 'SEQUENCE', 'TABLE'), ' IF EXISTS ', TABLE_NAME) FROM information_schema.TABLES
 WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'fencing\\_%'`

func texts(ctx context.Context, conn *sql.Conn, query string) (list []string, err error) {
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		list = append(list, text)
	}
	return list, rows.Err()
}
