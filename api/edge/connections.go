package edge

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// connections are the open connections of a Listener. Each has a file descriptor. A process without a free
// descriptor can neither accept a connection nor reach a node, so there is a maximum. At the maximum, a new
// connection replaces one that is in no use:
//
//	accepted ──▶ strangers ── credentials ──▶ busy ◀── request ─── idle
//	              1st to go                 never    ── response ─▶ 2nd to go
//
// In each queue, the connection that was idle longest is closed first. If both queues are empty, the new
// connection is refused. A connection is never closed while its request runs or waits for a lock.
type connections struct {
	opts ListenerOptions

	mu        sync.Mutex
	open      int
	strangers connQueue // connections that have not sent a request with credentials
	idle      connQueue // connections of callers, between two requests
	closed    int       // closed to make room, or refused, since the start
	warned    time.Time
}

const limitWarning = time.Minute // between two log lines about the maximum

// admit counts a connection that was accepted. It returns false if there is no room for it.
func (cs *connections) admit(c *pacedConn) bool {
	cs.mu.Lock()
	full := cs.opts.Max > 0 && cs.open >= cs.opts.Max
	var victim *pacedConn
	if full {
		victim = cs.leastMissed()
		cs.closed++
	}
	ok := !full || victim != nil
	if ok {
		c.listener = cs
		cs.open++
		cs.strangers.push(c)
	}
	cs.mu.Unlock()
	if victim != nil {
		_ = victim.end()
	}
	if full {
		cs.warn()
	}
	return ok
}

// makeRoom closes a connection because the system has no file descriptor for a new one.
func (cs *connections) makeRoom() {
	cs.mu.Lock()
	victim := cs.leastMissed()
	cs.closed++
	cs.mu.Unlock()
	if victim != nil {
		_ = victim.end()
	}
	cs.warn()
}

// leastMissed removes the connection that may be closed next from its queue; nil if all are busy.
func (cs *connections) leastMissed() *pacedConn {
	for c := cs.strangers.first; c != nil; c = cs.strangers.first {
		cs.strangers.remove(c)
		if !c.trusted.Load() { // otherwise its first request with credentials runs, and the end of that makes it idle
			return c
		}
	}
	c := cs.idle.first
	if c != nil {
		cs.idle.remove(c)
	}
	return c
}

func (cs *connections) warn() {
	cs.mu.Lock()
	due, closed := time.Since(cs.warned) >= limitWarning, cs.closed
	if due {
		cs.warned = time.Now()
	}
	cs.mu.Unlock()
	if due {
		cs.opts.Logger.LogAttrs(context.Background(), slog.LevelWarn, "connections reach their limit: idle ones are closed, new ones may be refused",
			slog.String("listener", cs.opts.Name), slog.Int("limit", cs.opts.Max), slog.Int("closed", closed), slog.String("remedy", cs.opts.Remedy))
	}
}

// leave stops counting a connection that was closed. It may be called again.
func (cs *connections) leave(c *pacedConn) {
	if cs == nil {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !c.left {
		c.left = true
		cs.open--
		c.place.leave(c)
	}
}

// ConnState must be the http.Server.ConnState of a server with a Listener. It notices which connections are
// idle.
func ConnState(conn net.Conn, state http.ConnState) {
	c := pacedBelow(conn)
	if c == nil || c.listener == nil {
		return
	}
	cs := c.listener
	cs.mu.Lock()
	defer cs.mu.Unlock()
	switch known := c.trusted.Load(); {
	case c.left:
	case state == http.StateActive && known:
		c.place.leave(c)
	case state == http.StateIdle && known:
		cs.idle.push(c)
	case state == http.StateIdle:
		cs.strangers.push(c)
	}
}

// pacedBelow returns the connection that a Listener accepted; nil if none did.
func pacedBelow(conn net.Conn) *pacedConn {
	for {
		if c, ok := conn.(*pacedConn); ok {
			return c
		}
		above, ok := conn.(interface{ NetConn() net.Conn }) // a TLS connection or a strictConn
		if !ok {
			return nil
		}
		conn = above.NetConn()
	}
}

// connQueue is a list of connections, ordered by how long they have been idle, the longest first.
type connQueue struct{ first, last *pacedConn }

// connPlace is the place of a connection in a queue; zero if it is in no queue.
type connPlace struct {
	in            *connQueue
	before, after *pacedConn
}

// push moves c from its present queue to the end of q.
func (q *connQueue) push(c *pacedConn) {
	c.place.leave(c)
	c.place = connPlace{in: q, before: q.last}
	if q.last == nil {
		q.first = c
	} else {
		q.last.place.after = c
	}
	q.last = c
}

// remove removes c from q, which contains it.
func (q *connQueue) remove(c *pacedConn) {
	before, after := c.place.before, c.place.after
	if before == nil {
		q.first = after
	} else {
		before.place.after = after
	}
	if after == nil {
		q.last = before
	} else {
		after.place.before = before
	}
	c.place = connPlace{}
}

func (p connPlace) leave(c *pacedConn) {
	if p.in != nil {
		p.in.remove(c)
	}
}

// Measure registers the metrics of the listener's connections.
func (l *Listener) Measure(registry prometheus.Registerer) {
	cs, labels := l.connections, prometheus.Labels{"listener": l.connections.opts.Name}
	read := func(n *int) func() float64 {
		return func() float64 {
			cs.mu.Lock()
			defer cs.mu.Unlock()
			return float64(*n)
		}
	}
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fencelock_connections", Help: "Open connections of a listener.", ConstLabels: labels,
		}, read(&cs.open)),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fencelock_connections_limit", Help: "The maximum of open connections of a listener, 0 for none.", ConstLabels: labels,
		}, read(&cs.opts.Max)),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "fencelock_connections_closed_total", Help: "Connections closed or refused because of the limit.", ConstLabels: labels,
		}, read(&cs.closed)),
	)
}
