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
	url     string
	batcher *batcher

	mu      sync.Mutex
	name    string          // of the server that answered last (Fencelock-Server)
	names   map[string]bool // of those that answered before
	shared  bool            // several servers answer here, in turn
	last    time.Time       // when it answered last
	silent  time.Time       // when a probe last got no response
	probing chan struct{}   // has one place: one at a time probes
}

// maxNames bounds the names that a peer remembers: a server has a new one with each start.
const maxNames = 16

// answered notes which server answered. A name that comes back after another one shows
// that there are several; one that only changes shows a restart.
func (p *peer) answered(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
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
// server does not answer: a frozen one would keep it until the poll's time limit. The first
// probe comes after first, and each has as long to be answered. Behind a load balancer it may
// ask another server than the one that keeps the request, and says nothing about it. ended
// waits for a probe that is under way.
func (c *Client) watch(ctx context.Context, p *peer, first time.Duration, cancel context.CancelFunc) (ended func()) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Add(1)
	timer := time.AfterFunc(first, func() {
		defer running.Done()
		for pause := first; ; pause = probeEvery {
			since := time.Now()
			if !c.alive(ctx, p, since.Add(-pause), first) && ctx.Err() == nil {
				cancel()
			}
			if sleep(ctx, probeEvery) != nil {
				return
			}
		}
	})
	return func() {
		stop()
		if timer.Stop() {
			running.Done()
		}
		running.Wait()
	}
}

// alive reports whether the server has answered since then, anything to anybody, or else
// answers a probe. One probe is enough for all that wait there.
func (c *Client) alive(ctx context.Context, p *peer, since time.Time, limit time.Duration) bool {
	asked := time.Now()
	select {
	case p.probing <- struct{}{}:
		defer func() { <-p.probing }()
	case <-ctx.Done():
		return true
	}
	p.mu.Lock()
	heard, silent, shared := p.last.After(since), p.silent.After(asked), p.shared
	p.mu.Unlock()
	switch {
	case heard || shared:
		return true
	case silent:
		return false
	case c.answers(ctx, p, limit):
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = time.Now()
	return p.shared
}

// answers probes a server. An answer that is not the server's is one, too: a proxy
// knows of no server that it could ask, and says nothing of the requests under way.
func (c *Client) answers(ctx context.Context, p *peer, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
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
