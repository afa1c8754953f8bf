package redisnode

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// Leaks tunes the search for locks that would stay for ever because another program
// removed their expiry (PERSIST, a restored dump). The zero value of a field takes its
// default.
type Leaks struct {
	Page  int           // keys visited in one call; default 200, about 0.25 ms of the server's time
	Pause time.Duration // between calls; default 100ms
	Rest  time.Duration // between the end of a search and the next; default 10m
}

func (l Leaks) withDefaults() Leaks {
	return Leaks{
		Page:  cmp.Or(l.Page, 200),
		Pause: cmp.Or(l.Pause, 100*time.Millisecond),
		Rest:  cmp.Or(l.Rest, 10*time.Minute),
	}
}

// WatchLeaks searches again and again until ctx ends, and reports what it finds to the
// Meter and the log. Every server searches by itself, so that none depends on another.
func (n *Node) WatchLeaks(ctx context.Context, l Leaks) {
	l = l.withDefaults()
	logged := 0
	for wait := time.Duration(rand.Int64N(int64(l.Pause) + int64(l.Rest)/10)); pause(ctx, wait); wait = l.Rest { //nolint:gosec // it spreads the servers' searches
		found, err := n.searchLeaks(ctx, l)
		if err != nil {
			continue // the node is down or not admitted; the next search reports
		}
		n.meter.Leaked(len(found))
		if len(found) != logged {
			n.logLeaks(found)
		}
		logged = len(found)
	}
}

func (n *Node) logLeaks(found []string) {
	const examples = 5
	if len(found) == 0 {
		n.opts.Logger.Info("the node no longer has locks without an expiry", "node", n.name)
		return
	}
	n.opts.Logger.Warn("the node has locks without an expiry: they stay locked until an operator breaks them (fencelock break --any RESOURCE) or sets an expiry on the node (PEXPIRE l:{resource} 60000); this service makes no such locks, so find the program that changes the keys of this database",
		"node", n.name, "locks", len(found), "some", found[:min(len(found), examples)])
}

// searchLeaks visits every key once and returns the resources of the locks without an
// expiry, each once.
func (n *Node) searchLeaks(ctx context.Context, l Leaks) (found []string, err error) {
	for cursor := "0"; ; {
		page, err := n.leakPage(ctx, cursor, l.Page)
		if err != nil {
			return nil, err
		}
		for _, resource := range page[1:] {
			found = append(found, str(resource))
		}
		if cursor = str(page[0]); cursor == "0" {
			slices.Sort(found) // SCAN may visit a key twice
			return slices.Compact(found), nil
		}
		if !pause(ctx, l.Pause) {
			return nil, ctx.Err()
		}
	}
}

// leakPage returns the next cursor and resources.
func (n *Node) leakPage(ctx context.Context, cursor string, count int) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, max(n.opts.Timeout, time.Second))
	defer cancel()
	return n.read(ctx, leaksScript, "L", 1, cursor, count)
}
