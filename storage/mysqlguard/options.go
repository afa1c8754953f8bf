package mysqlguard

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Options tune a Guard. The zero value is ready for use.
type Options struct {
	// HistoryKept is the number of attempts kept for each resource, accepted and refused: 1 to 10000, 0 means
	// 100.
	HistoryKept int
	// MaxConns is the maximum number of connections: 0 means 16.
	MaxConns int
	// CallTimeout bounds every call, so that a caller soon learns that MariaDB is unreachable: 0 means 2 s.
	CallTimeout time.Duration
	// Credentials, if not nil, returns the user and the password of each new connection, instead of
	// those of the URL; "" for the URL's. It is called from several goroutines and must not block.
	Credentials func() (user, password string)
}

const (
	defaultHistoryKept = 100
	maxHistoryKept     = 10000
	defaultMaxConns    = 16
	defaultCallTimeout = 2 * time.Second
	// highestTimeout bounds HighestMark, which reads every mark.
	highestTimeout = 30 * time.Second

	defaultPort = "3306"
)

// errMalformedURL omits the URL on purpose, because it contains a password.
var errMalformedURL = errors.New("the database URL is not valid; it should look like mysql://user:password@host:3306/database?tls=true")

func (o Options) withDefaults() (Options, error) {
	if o.HistoryKept == 0 {
		o.HistoryKept = defaultHistoryKept
	}
	if o.HistoryKept < 1 || o.HistoryKept > maxHistoryKept {
		return o, fmt.Errorf("HistoryKept is %d: it must be 1 to %d", o.HistoryKept, maxHistoryKept)
	}
	if o.MaxConns == 0 {
		o.MaxConns = defaultMaxConns
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = defaultCallTimeout
	}
	if o.CallTimeout < 0 || o.MaxConns < 0 {
		return o, errors.New("CallTimeout and MaxConns must be positive")
	}
	return o, nil
}

// IsURL reports whether the text has the scheme that Open accepts.
func IsURL(text string) bool { return strings.HasPrefix(text, "mysql://") }

// parseURL reads a URL. Its parameters are the driver's.
func parseURL(text string) (*mysql.Config, error) {
	u, err := url.Parse(text)
	if err != nil || !IsURL(text) || u.Hostname() == "" || strings.Trim(u.Path, "/") == "" {
		return nil, errMalformedURL
	}
	config, err := mysql.ParseDSN("/?" + u.RawQuery)
	if err != nil {
		return nil, errMalformedURL
	}
	config.Net, config.Addr = "tcp", u.Host
	if u.Port() == "" {
		config.Addr = net.JoinHostPort(u.Hostname(), defaultPort)
	}
	config.DBName = strings.TrimPrefix(u.Path, "/")
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	return config, nil
}

// open creates a pool. It does not connect.
func open(url string, opts Options) (*sql.DB, error) {
	config, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	// With interpolated parameters a call is one round trip; this collation passes values unchanged.
	config.InterpolateParams, config.Collation = true, "utf8mb4_general_ci"
	config.ParseTime, config.Loc = true, time.UTC
	if config.Timeout == 0 || config.Timeout > opts.CallTimeout {
		config.Timeout = opts.CallTimeout
	}
	// The returned errors describe connection failures, so the driver need not log them.
	config.Logger = &mysql.NopLogger{}
	if opts.Credentials != nil {
		err := config.Apply(mysql.BeforeConnect(func(_ context.Context, conn *mysql.Config) error {
			user, password := opts.Credentials()
			conn.User, conn.Passwd = cmp.Or(user, conn.User), cmp.Or(password, conn.Passwd)
			return nil
		}))
		if err != nil {
			return nil, err
		}
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, errMalformedURL
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(opts.MaxConns)
	db.SetMaxIdleConns(opts.MaxConns)
	return db, nil
}
