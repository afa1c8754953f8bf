package redisnode

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencelock/fencelock/internal/pemfile"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Options tune a Node. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a batch: connecting, sending and the reply. Default 200ms. After a timeout the connection
	// is closed, and operations fail unsent until the node responds to a ping.
	Timeout time.Duration
	// CounterTTL is how long an unused counter is kept; default 24h. After the grant of a lease longer than a
	// thousandth of CounterTTL, the counter is kept for at least half of CounterTTL. It must be longer than
	// any TTL, so that a counter does not expire before its lock.
	CounterTTL time.Duration
	// Queue bounds the operations that wait for the node; default 8192. When the queue is full, further
	// operations fail at once with node.ErrQueueFull.
	Queue int
	// Batch bounds the operations of one script call; default 256.
	Batch  int
	Logger *slog.Logger // default discards
	// Meters returns the Meter of the node with that name; default none.
	Meters func(node string) Meter
	// Credentials, if not nil, returns the user and the password of each new connection, instead of
	// those of the URL; "" for the URL's. It is called from several goroutines and must not block.
	Credentials func() (user, password string)
}

// Meter receives the node's statistics. Its methods are called from several goroutines
// and must not block.
type Meter interface {
	// Batch is called after each script call, including failed calls.
	Batch(operations int, took time.Duration, failed bool)
	// Memory is called after each Observe with the bytes that the server uses and its limit (0 if it has
	// none).
	Memory(used, limit int64)
	// Miscounted is called after a script call that returned a wrong number of replies. Such a node is broken,
	// and the call counts as failed.
	Miscounted(operations, replies int)
	// Leaked is called after each search for locks without an expiry, with their number.
	Leaked(locks int)
}

type unmetered struct{}

func (unmetered) Batch(int, time.Duration, bool) {}
func (unmetered) Memory(int64, int64)            {}
func (unmetered) Leaked(int)                     {}
func (unmetered) Miscounted(int, int)            {}

func (o Options) withDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, 200*time.Millisecond)
	o.CounterTTL = cmp.Or(o.CounterTTL, 24*time.Hour)
	o.Queue = cmp.Or(o.Queue, 8192)
	o.Batch = cmp.Or(o.Batch, 256)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Meters == nil {
		o.Meters = func(string) Meter { return unmetered{} }
	}
	return o
}

// ParseAddr reads a node's address: host:port, or a redis:// or rediss:// URL
// with user, password and database number. Errors never repeat a password.
func ParseAddr(addr string) (*redis.Options, error) {
	if strings.Contains(addr, "://") {
		return parseURL(addr)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("node address %q: want host:port, or a redis:// or rediss:// URL", redact(addr))
	}
	if !isPort(port) || host == "" || strings.Contains(host, "@") {
		return nil, fmt.Errorf("node address %q: want a host and a port from 1 to 65535, or a URL where there is a password", redact(addr))
	}
	return &redis.Options{Addr: addr}, nil
}

// redact removes user and password from an address.
func redact(addr string) string {
	scheme, rest, isURL := strings.Cut(addr, "://")
	if !isURL {
		scheme, rest = "", addr
	} else {
		scheme += "://"
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		rest = "***@" + rest[at+1:]
	}
	return scheme + rest
}

func isPort(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= 1 && n <= 65535
}

// parseURL reads a URL. It drops the library's error, which may repeat a part of the
// password.
func parseURL(addr string) (*redis.Options, error) {
	rest, files := cutFiles(addr)
	opts, err := redis.ParseURL(rest)
	if err == nil && opts.Network == "tcp" && opts.DB >= 0 {
		if _, port, err := net.SplitHostPort(opts.Addr); err == nil && isPort(port) {
			return opts, useFiles(opts, files)
		}
	}
	return nil, fmt.Errorf("node address %s: want redis:// or rediss://user:password@host:port/database, with %%XX for special characters in the password", redact(addr))
}

// cutFiles removes from a URL the options that name TLS files, which the library does not have.
func cutFiles(addr string) (rest string, files url.Values) {
	files = make(url.Values)
	rest, query, _ := strings.Cut(addr, "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return addr, files // the library will refuse it
	}
	for _, name := range []string{"ca", "cert", "key"} {
		if options.Has(name) {
			files.Set(name, options.Get(name))
			options.Del(name)
		}
	}
	if len(files) == 0 {
		return addr, files
	}
	if len(options) > 0 {
		rest += "?" + options.Encode()
	}
	return rest, files
}

func useFiles(opts *redis.Options, files url.Values) error {
	if len(files) == 0 {
		return nil
	}
	if opts.TLSConfig == nil {
		return fmt.Errorf("node address %s: the options ca, cert and key are for rediss://", opts.Addr)
	}
	config, err := pemfile.Client(files)
	if err != nil {
		return fmt.Errorf("node address %s: %w", opts.Addr, err)
	}
	opts.TLSConfig.RootCAs, opts.TLSConfig.Certificates = config.RootCAs, config.Certificates
	return nil
}

// clientOptions switches off every feature of the library that could repeat a script, outlast its time limit
// or send commands of its own.
func clientOptions(r *redis.Options, o Options) *redis.Options {
	r.MaxRetries = -1 // rule 3: a script is never sent twice
	r.ContextTimeoutEnabled = true
	r.Protocol = 2
	r.DialTimeout = max(o.Timeout, time.Second) // the context carries the batch's own limit
	r.DialerRetries = 1
	r.ReadTimeout = max(o.Timeout, 5*time.Second)
	r.WriteTimeout = r.ReadTimeout
	r.PoolTimeout = o.Timeout
	r.PoolSize = 4
	r.MinIdleConns = 1
	r.ConnMaxIdleTime = -1
	r.DisableIdentity = true
	r.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	r.Dialer = limitedDialer(r)
	r.CredentialsProvider = o.Credentials
	return r
}

var (
	_ node.Node    = (*Node)(nil)
	_ node.Clocked = (*Node)(nil)
)

// LogLibrary makes the Redis library log to logger, at the debug level: the nodes' states describe connections
// better. The library has one logger for the whole process, so a program calls this when it starts.
func LogLibrary(logger *slog.Logger) { redis.SetLogger(libraryLog{logger}) }

type libraryLog struct{ *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	l.DebugContext(ctx, "redis library", "says", fmt.Sprintf(format, v...))
}
