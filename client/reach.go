package client

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// probeEvery is how often a server is probed while requests wait there.
const probeEvery = 5 * time.Second

// peer is what one of a client's URLs leads to: a server, or a load balancer before
// several.
type peer struct {
	url string

	mu     sync.Mutex
	name   string          // of the server that answered last (Fencelock-Server)
	names  map[string]bool // of those that answered before
	shared bool            // several servers answer here, in turn
	polls  map[*poll]bool  // that are in flight
	probe  *probe          // runs while there are any
}

// poll is a request that waits at a server.
type poll struct {
	begun  time.Time
	cancel context.CancelFunc
}

// probe asks whether a server answers, for all requests that wait there.
type probe struct {
	stop  context.CancelFunc
	ended chan struct{}
}

// maxNames bounds the names that a peer remembers: a server has a new one with each start.
const maxNames = 16

// answered notes which server answered. A name that comes back after another one shows
// that there are several; one that only changes shows a restart.
func (p *peer) answered(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if name == "" || name == p.name {
		return
	}
	p.shared = p.shared || p.names[name]
	if p.names == nil || len(p.names) >= maxNames {
		p.names = make(map[string]bool)
	}
	p.names[p.name], p.names[name], p.name = true, true, name
}

// watch probes the server while a request waits there, and cancels the request when the
// server does not answer: a frozen one would keep it until the poll's time limit. Behind a
// load balancer the probe may ask another server than the one that keeps the request, and
// says nothing about it. ended waits for the probe to end with the last request.
func (c *Client) watch(p *peer, cancel context.CancelFunc) (ended func()) {
	waiting := &poll{begun: time.Now(), cancel: cancel}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.polls) == 0 {
		ctx, stop := context.WithCancel(context.Background())
		p.polls, p.probe = make(map[*poll]bool), &probe{stop: stop, ended: make(chan struct{})}
		go c.runProbe(ctx, p, p.probe.ended)
	}
	p.polls[waiting] = true
	return func() { p.ended(waiting) }
}

func (p *peer) ended(waiting *poll) {
	p.mu.Lock()
	delete(p.polls, waiting)
	last, probe := len(p.polls) == 0, p.probe
	p.mu.Unlock()
	if last {
		probe.stop()
		<-probe.ended
	}
}

func (c *Client) runProbe(ctx context.Context, p *peer, ended chan<- struct{}) {
	defer close(ended)
	for sleep(ctx, probeEvery) == nil {
		begun := time.Now()
		if !c.answers(ctx, p) && ctx.Err() == nil {
			p.breakOff(begun)
		}
	}
}

// breakOff cancels the requests that wait at a server which did not answer a probe, unless
// they may wait at another one.
func (p *peer) breakOff(before time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shared {
		return
	}
	for waiting := range p.polls {
		if waiting.begun.Before(before) {
			waiting.cancel()
		}
	}
}

// answers probes a server. An answer that is not the server's is one, too: a proxy
// knows of no server that it could ask, and says nothing of the requests under way.
func (c *Client) answers(ctx context.Context, p *peer) bool {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/healthz", nil)
	if err != nil {
		return false
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)); err != nil {
		return false
	}
	if resp.StatusCode == http.StatusOK {
		p.answered(resp.Header.Get(wire.HeaderServer))
	}
	return true
}
