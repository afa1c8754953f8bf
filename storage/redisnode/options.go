package redisnode

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencelock/fencelock/lockcore/node"
)

// Options tune a Node. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a batch: connecting, sending and the reply. Default 200ms.
	// It should be several times as long as a request waits for the node
	// (redlock.Config.NodeTimeout): a node that is late for a request is not a
	// node that is down, and breaking its connection would lose the answers and
	// make it later yet. Nobody waits for it longer than the request does.
	Timeout time.Duration
	// CounterTTL is how long a counter stays after its last use; default 24h.
	// Longer than any TTL, since a counter never goes before its lock.
	CounterTTL time.Duration
	// Queue bounds the operations that wait for the node; default 8192. More
	// fail at once with node.ErrQueueFull.
	Queue int
	// Batch bounds the operations of one script call; default 256.
	Batch  int
	Logger *slog.Logger // default discards
	// Meters, if not nil, gives the Meter of the node of that name.
	Meters func(node string) Meter
}

// Meter is told what the node's one sender does, for statistics. Its methods
// are called by several goroutines and must not block.
type Meter interface {
	// Batch tells of a script call with so many operations, and how long its
	// answer took; of one that failed, too.
	Batch(operations int, took time.Duration, failed bool)
	// Memory tells what the server uses and may use, in bytes; most is 0 where
	// nothing limits it.
	Memory(used, most int64)
	// Leaked tells how many locks without an expiry the last look at all keys found.
	Leaked(locks int)
}

type unmetered struct{}

func (unmetered) Batch(int, time.Duration, bool) {}
func (unmetered) Memory(int64, int64)            {}
func (unmetered) Leaked(int)                     {}

func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = 200 * time.Millisecond
	}
	if o.CounterTTL == 0 {
		o.CounterTTL = 24 * time.Hour
	}
	if o.Queue == 0 {
		o.Queue = 8192
	}
	if o.Batch == 0 {
		o.Batch = 256
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
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
		return nil, fmt.Errorf("node address %q: want host:port, or a redis:// or rediss:// URL", Redact(addr))
	}
	if !isPort(port) || host == "" || strings.Contains(host, "@") {
		return nil, fmt.Errorf("node address %q: want a host and a port from 1 to 65535, or a URL where there is a password", Redact(addr))
	}
	return &redis.Options{Addr: addr}, nil
}

// Redact takes user and password out of an address.
func Redact(addr string) string {
	scheme, rest, isURL := strings.Cut(addr, "://")
	if !isURL {
		scheme, rest = "", addr
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		rest = "***@" + rest[at+1:]
	}
	if isURL {
		return scheme + "://" + rest
	}
	return rest
}

func isPort(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= 1 && n <= 65535
}

// parseURL reads a URL. What the library says about one that it cannot read may
// repeat a part of the password, so it is not told.
func parseURL(addr string) (*redis.Options, error) {
	opts, err := redis.ParseURL(addr)
	if err == nil && opts.Network == "tcp" && opts.DB >= 0 {
		if _, port, err := net.SplitHostPort(opts.Addr); err == nil && isPort(port) {
			return opts, nil
		}
	}
	return nil, fmt.Errorf("node address %s: want redis:// or rediss://user:password@host:port/database, with %%XX for special characters in the password", Redact(addr))
}

// clientOptions turns off whatever could repeat a script, outlast its time
// limit or add commands of its own.
func clientOptions(r *redis.Options, o Options) *redis.Options {
	r.MaxRetries = -1 // rule 3: a script is never sent twice
	r.ContextTimeoutEnabled = true
	r.Protocol = 2
	r.DialTimeout = max(o.Timeout, time.Second) // the batch's own limit is in its context
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
	return r
}

var (
	_ node.Node    = (*Node)(nil)
	_ node.Clocked = (*Node)(nil)
)

// LogLibrary makes the Redis library log to logger, at the debug level: what it
// has to say about connections, the nodes' states tell better. The library has
// one logger for the whole process, so this is for a program's start.
func LogLibrary(logger *slog.Logger) { redis.SetLogger(libraryLog{logger}) }

type libraryLog struct{ *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	l.DebugContext(ctx, "redis library", "says", fmt.Sprintf(format, v...))
}
