package pgguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options tune a Guard. The zero value is ready for use.
type Options struct {
	// HistoryKept is the number of attempts kept for each resource, accepted and refused: 1 to 10000, 0 means
	// 100.
	HistoryKept int
	// MaxConns is the maximum number of connections: 0 means pool_max_conns of the URL, or 16. At least 2.
	MaxConns int32
	// CallTimeout bounds every call, and every attempt to connect, so that a caller soon learns that Postgres
	// is unreachable: 0 means 2 s.
	CallTimeout time.Duration
	// Credentials, if not nil, returns the user and the password of each new connection, instead of
	// those of the URL; "" for the URL's. It is called from several goroutines and must not block.
	Credentials func() (user, password string)
}

const (
	defaultHistoryKept = 100
	maxHistoryKept     = 10000
	defaultMaxConns    = 16
	minConns           = 2
	defaultCallTimeout = 2 * time.Second

	// cancelGrace is how long a connection may take to end a query whose caller gave up. After it, the
	// connection is closed.
	cancelGrace = 200 * time.Millisecond
	// installTimeout bounds the creation of the schema, including the wait for other servers.
	installTimeout = 30 * time.Second
	// highestTimeout bounds HighestMark, which reads every mark.
	highestTimeout = 30 * time.Second
)

// errMalformedURL omits the URL on purpose, because it contains a password.
var errMalformedURL = errors.New("the database URL is not valid; it should look like postgres://user:password@host:5432/database?sslmode=verify-full")

func (o Options) withDefaults() (Options, error) {
	if o.HistoryKept == 0 {
		o.HistoryKept = defaultHistoryKept
	}
	if o.HistoryKept < 1 || o.HistoryKept > maxHistoryKept {
		return o, fmt.Errorf("HistoryKept is %d: it must be 1 to %d", o.HistoryKept, maxHistoryKept)
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = defaultCallTimeout
	}
	if o.CallTimeout < 0 {
		return o, fmt.Errorf("CallTimeout is %s: it must be positive", o.CallTimeout)
	}
	return o, nil
}

// poolConfig reads the URL. It does not connect.
func poolConfig(url string, opts Options) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errMalformedURL
	}
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = defaultMaxConns
	}
	if opts.MaxConns > 0 {
		config.MaxConns = opts.MaxConns
	}
	config.MaxConns = max(config.MaxConns, minConns)
	config.MinConns, config.MinIdleConns = 0, 0
	prepareConn(config.ConnConfig, opts)
	if opts.Credentials != nil {
		config.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
			user, password := opts.Credentials()
			conn.User, conn.Password = cmp.Or(user, conn.User), cmp.Or(password, conn.Password)
			return nil
		}
	}
	return config, nil
}

func prepareConn(config *pgx.ConnConfig, opts Options) {
	if t := config.ConnectTimeout; t <= 0 || t > opts.CallTimeout {
		config.ConnectTimeout = opts.CallTimeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "fencelock"
	}
	// A query whose caller gave up is cancelled in the server, too. Otherwise it could continue to wait for a
	// lock, and take effect later.
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
}
