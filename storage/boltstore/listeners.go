package boltstore

import (
	"sync"

	"github.com/fencelock/fencelock/lockcore/node"
)

// listeners are who is notified that a ticket's turn has come.
type listeners struct {
	mu       sync.Mutex
	byServer map[string]map[*node.Listener]struct{}
}

// turn says whose turn it is.
type turn struct {
	resource string
	ticket   node.Ticket
}

func (l *listeners) add(server string, w node.Listener) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byServer == nil {
		l.byServer = make(map[string]map[*node.Listener]struct{})
	}
	if l.byServer[server] == nil {
		l.byServer[server] = make(map[*node.Listener]struct{})
	}
	l.byServer[server][&w] = struct{}{}
	return func() { l.remove(server, &w) }
}

func (l *listeners) remove(server string, w *node.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byServer[server], w)
	if len(l.byServer[server]) == 0 {
		delete(l.byServer, server)
	}
}

func (l *listeners) notify(turns []turn) {
	if len(turns) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, turn := range turns {
		for w := range l.byServer[turn.ticket.Server] {
			(*w).Wake(turn.resource, turn.ticket)
		}
	}
}
