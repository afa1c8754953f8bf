package chaos

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

const (
	// lookEvery is the pause between two looks at a resource.
	lookEvery = 100 * time.Millisecond
	// lookWithin is how long a look may take before it tries another server.
	lookWithin = 300 * time.Millisecond
)

// look is a response of GET /locks/{resource}, produced at some moment between from and to. A look is blind if
// no quorum voted then.
type look struct {
	from, to time.Duration
	blind    bool
	held     bool
	label    string // the label of the lease that holds the resource
	token    int64
}

// same reports that the look shows no change since an earlier look.
func (l look) same(earlier look) bool {
	return !l.blind && !earlier.blind && l.held == earlier.held && l.label == earlier.label
}

// watch looks at every resource that clients compete for, until its round ends.
type watch struct {
	stand   *Stand
	running sync.WaitGroup
	mu      sync.Mutex
	looks   map[string][]look
}

func (s *Stand) startWatch(ctx context.Context) *watch {
	w := &watch{stand: s, looks: map[string][]look{}}
	for i, name := range s.contested() {
		w.running.Go(func() { w.run(ctx, name, i) })
	}
	return w
}

// contested are the resources that clients compete for.
func (s *Stand) contested() (names []string) {
	for i := range s.config.Resources {
		names = append(names, s.resource(i))
	}
	return slices.Concat(names, slotNames())
}

// run queries the servers in turn.
func (w *watch) run(ctx context.Context, name string, server int) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		l := look{blind: true}
		for i := 0; i < len(w.stand.servers) && l.blind; i++ {
			server = (server + 1) % len(w.stand.servers)
			l = w.stand.look(ctx, server, name)
		}
		w.mu.Lock()
		w.looks[name] = append(w.looks[name], l)
		w.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (s *Stand) look(ctx context.Context, server int, name string) (l look) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	l.from = s.now()
	a := s.send(ctx, server, request{method: http.MethodGet, path: "/locks/" + url.PathEscape(name)})
	l.to = s.now()
	var lock wire.Lock
	if a.into(&lock); a.status != http.StatusOK {
		l.blind = true
		return l
	}
	l.held, l.token = lock.Held, lock.FencingToken
	if lock.Holder != nil {
		l.label = *lock.Holder
	}
	return l
}
