package replica

import (
	"context"
	"slices"
	"sync"

	"github.com/fencelock/fencelock/lockcore/node"
)

// Listeners implements Store.Listen for the transactions of this process. The zero value has no listeners.
type Listeners struct {
	mu  sync.Mutex
	all []*listening // in the order of their calls, so that a simulation repeats
}

type listening struct {
	server   string
	listener node.Listener
}

// Wake is a call of Tx.Notify that is executed after the transaction has been committed.
type Wake struct {
	Resource string
	Ticket   node.Ticket
}

// Listen implements Store.Listen.
func (l *Listeners) Listen(ctx context.Context, server string, listener node.Listener) {
	one := &listening{server, listener}
	l.mu.Lock()
	l.all = append(l.all, one)
	l.mu.Unlock()
	listener.Subscribed()
	<-ctx.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(o *listening) bool { return o == one })
}

// Has reports whether it listens for the server.
func (l *Listeners) Has(server string) bool {
	return slices.ContainsFunc(l.now(), func(one *listening) bool { return one.server == server })
}

// Notify calls the listeners of the tickets' servers.
func (l *Listeners) Notify(wakes []Wake) {
	for _, wake := range wakes {
		for _, one := range l.now() {
			if one.server == wake.Ticket.Server {
				one.listener.Wake(wake.Resource, wake.Ticket)
			}
		}
	}
}

// Resubscribed notifies all listeners after a time in which notifications may have been lost.
func (l *Listeners) Resubscribed() {
	for _, one := range l.now() {
		one.listener.Subscribed()
	}
}

func (l *Listeners) now() []*listening {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}
