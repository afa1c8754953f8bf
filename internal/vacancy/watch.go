package vacancy

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// lookEvery is the pause between two looks at a resource.
const lookEvery = 100 * time.Millisecond

// Asked are the servers that a [Watch] asks.
type Asked struct {
	Servers int
	Within  time.Duration        // how long a look may take before another server is asked
	Now     func() time.Duration // the clock of the looks
	// Lock returns a server's response of GET /locks/{resource}; ok is false if it was another.
	Lock func(ctx context.Context, server int, resource string) (lock wire.Lock, ok bool)
}

// Watch looks at resources until its context ends.
type Watch struct {
	asked   Asked
	running sync.WaitGroup
	looks   map[string]*[]Look
}

// Start watches the resources. It asks the servers in turn, and another one if a server does not respond in time.
func Start(ctx context.Context, resources []string, asked Asked) *Watch {
	w := &Watch{asked: asked, looks: map[string]*[]Look{}}
	for i, resource := range resources {
		looks := new([]Look)
		w.looks[resource] = looks
		w.running.Go(func() { w.run(ctx, resource, i, looks) })
	}
	return w
}

// Looks waits until the context has ended, and returns what was seen of each resource.
func (w *Watch) Looks() map[string][]Look {
	w.running.Wait()
	seen := map[string][]Look{}
	for resource, looks := range w.looks {
		seen[resource] = *looks
	}
	return seen
}

func (w *Watch) run(ctx context.Context, resource string, server int, looks *[]Look) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		l := Look{Blind: true}
		for i := 0; i < w.asked.Servers && l.Blind; i++ {
			server = (server + 1) % w.asked.Servers
			l = w.look(ctx, server, resource)
		}
		*looks = append(*looks, l)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (w *Watch) look(ctx context.Context, server int, resource string) (l Look) {
	ctx, cancel := context.WithTimeout(ctx, w.asked.Within)
	defer cancel()
	l.From = w.asked.Now()
	lock, ok := w.asked.Lock(ctx, server, resource)
	l.To = w.asked.Now()
	l.Blind, l.Held, l.Token, l.Waiters = !ok, lock.Held, lock.FencingToken, lock.Waiters
	if lock.Holder != nil {
		l.Label = *lock.Holder
	}
	return l
}
