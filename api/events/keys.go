package events

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/fencelock/fencelock/internal/pause"
)

// Keys knows the keys that seal lease ids at this server.
type Keys interface {
	// LeaseKey returns the name of the configured key that seals, "" if the cluster's own secret does. The
	// name reveals nothing about the key.
	LeaseKey() string
	// OpensLeaseKey reports whether a configured key of that name opens lease ids here.
	OpensLeaseKey(name string) bool
}

// How often servers compare their lease keys. Each message costs a commit on some engines.
const (
	answerTime   = 2 * time.Second
	answerPause  = time.Second / 2 // collects the copies of one question, which comes on several channels
	comparePause = 10 * time.Minute
	differPause  = time.Minute // the same while some servers differ
	maxCompared  = 1000        // the number of servers remembered; anyone may send such messages
	maxLines     = 4           // log lines within differPause
)

// A message about lease keys uses the topic listen. It says whether it is a question, the server's name,
// and the name of its key. It is not sealed, because servers with different keys could not read it. False
// messages only cost a few lines in the log.
const (
	keysAsked  = "keys?"
	keysAnswer = "keys."
	noKey      = "-"
)

// keyWatch finds out whether the lease ids of the other servers can be opened here.
type keyWatch struct {
	server string
	keys   Keys
	tell   func(ctx context.Context, word string)
	logger *slog.Logger
	asked  chan struct{} // signalled when another server asks

	mu     sync.Mutex
	others map[string]otherKey // by the server's name
	differ int
	logged bool          // the last log line reported a difference
	lines  *rate.Limiter // limits log lines
}

type otherKey struct {
	name string
	at   time.Time
}

func newKeyWatch(server string, keys Keys, tell func(ctx context.Context, word string), logger *slog.Logger) *keyWatch {
	return &keyWatch{server: server, keys: keys, tell: tell, logger: logger, asked: make(chan struct{}, 1), others: make(map[string]otherKey), lines: rate.NewLimiter(rate.Every(differPause/maxLines), maxLines)}
}

// run asks the other servers soon after the start, when this server's key changes, and regularly if a key
// is configured. It also answers the other servers' questions.
func (w *keyWatch) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { w.answer(ctx) })
	for pause.For(ctx, answerTime); ctx.Err() == nil; { // first, until this server can hear the others
		begun, name := time.Now(), w.keys.LeaseKey()
		w.say(ctx, keysAsked)
		pause.For(ctx, answerTime)
		w.forget(begun)
		for w.keys.LeaseKey() == name && !w.due(begun) && ctx.Err() == nil {
			pause.For(ctx, time.Second)
			w.review() // the file may have more or fewer keys after the first one
		}
	}
	wg.Wait()
}

// due reports whether to ask again. If two servers differ, at least one of them has a configured key, so
// only those ask.
func (w *keyWatch) due(asked time.Time) bool {
	passed := time.Since(asked)
	return passed >= comparePause && w.keys.LeaseKey() != "" || passed >= differPause && w.pressing()
}

func (w *keyWatch) answer(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.asked:
		}
		pause.For(ctx, answerPause)
		select {
		case <-w.asked:
		default:
		}
		w.say(ctx, keysAnswer)
	}
}

func (w *keyWatch) say(ctx context.Context, kind string) {
	name := w.keys.LeaseKey()
	if name == "" {
		name = noKey
	}
	w.tell(ctx, strings.Join([]string{kind, w.server, name}, " "))
}

// heard processes a message. It returns false if the message is not about lease keys.
func (w *keyWatch) heard(word string) bool {
	parts := strings.Split(word, " ")
	if len(parts) != 3 || parts[0] != keysAsked && parts[0] != keysAnswer {
		return false
	}
	server, name := parts[1], parts[2]
	if server == w.server || !fits(server) || !fits(name) {
		return true
	}
	if parts[0] == keysAsked {
		signal(w.asked)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.others[server]; known || len(w.others) < maxCompared {
		w.others[server] = otherKey{name, time.Now()}
	}
	w.compare()
	return true
}

// forget forgets the servers that have not been heard since then, and compares this server's present key
// with the keys of the others.
func (w *keyWatch) forget(since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for server, key := range w.others {
		if key.at.Before(since) {
			delete(w.others, server)
		}
	}
	w.compare()
}

// review compares the lease ids that this server can open now with the keys of the others.
func (w *keyWatch) review() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compare()
}

// differing returns how many other servers have lease ids that cannot be opened here.
func (w *keyWatch) differing() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.differ
}

// pressing reports whether some servers differ, or the last log line said so.
func (w *keyWatch) pressing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.differ > 0 || w.logged
}

// compare logs when the first server differs, and when none differs any more, at most maxLines lines at
// once. The caller holds w.mu.
func (w *keyWatch) compare() {
	w.differ = 0
	var server, why string
	for other, key := range w.others {
		if reason := w.refuses(key.name); reason != "" {
			server, why = other, reason
			w.differ++
		}
	}
	if w.logged == (w.differ > 0) || !w.lines.Allow() {
		return
	}
	w.logged = w.differ > 0
	if w.logged {
		w.logger.Warn("leases of another server get 404 here", slog.String("reason", why), slog.String("server", server), slog.String("its_key", w.others[server].name), slog.String("own_key", w.keys.LeaseKey()))
	} else {
		w.logger.Info("the lease ids of all servers open here again")
	}
}

// refuses returns why this server cannot open lease ids that another server's key seals; "" if it can.
func (w *keyWatch) refuses(name string) string {
	switch own := w.keys.LeaseKey(); {
	case name == noKey && own == "", name != noKey && w.keys.OpensLeaseKey(name):
		return ""
	case own == "":
		return "it has a FENCELOCK_LEASE_KEY_FILE, and this server has none: give all servers the same"
	case name == noKey:
		return "it has no FENCELOCK_LEASE_KEY_FILE, and this server has one: give all servers the same"
	default:
		return "its FENCELOCK_LEASE_KEY_FILE begins with a key that this server's file lacks: add a new key to every server's file before you make it the first line of any"
	}
}
