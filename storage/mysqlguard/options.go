package mysqlguard

import (
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
	// HistoryKept is how many attempts are kept for each resource, accepted and refused:
	// 1 to 10000, 0 means 100.
	HistoryKept int
	// MaxConns is the most connections held: 0 means 16.
	MaxConns int
	// CallTimeout bounds every call, so that a caller learns soon that MariaDB is away:
	// 0 means 2 s.
	CallTimeout time.Duration
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

// errMalformedURL keeps quiet about the URL on purpose: it holds a password.
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

// IsURL reports whether the text has the scheme of a URL that Open takes.
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

// open makes a pool. It does not connect.
func open(url string, opts Options) (*sql.DB, error) {
	config, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	// A call is one round trip, and a value goes as it is.
	config.InterpolateParams, config.Collation = true, "utf8mb4_general_ci"
	config.ParseTime, config.Loc = true, time.UTC
	if config.Timeout == 0 || config.Timeout > opts.CallTimeout {
		config.Timeout = opts.CallTimeout
	}
	// What goes wrong on a connection is in the errors that are returned.
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, errMalformedURL
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(opts.MaxConns)
	db.SetMaxIdleConns(opts.MaxConns)
	return db, nil
}
