package redisnode

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
)

// Leaks tunes the search for locks that would stay for ever because another program
// removed their expiry (PERSIST, a restored dump). The zero value of a field takes its
// default.
type Leaks struct {
	Page  int           // keys visited in one call; default 200, about 0.25 ms of the server's time
	Pause time.Duration // between calls; default 100ms
	Rest  time.Duration // between two checks of the count, and after a search; default 10m
}

func (l Leaks) withDefaults() Leaks {
	return Leaks{
		Page:  cmp.Or(l.Page, 200),
		Pause: cmp.Or(l.Pause, 100*time.Millisecond),
		Rest:  cmp.Or(l.Rest, 10*time.Minute),
	}
}

// ownLasting is the number of this service's keys without an expiry: only OwnKey.
const ownLasting = 1

// WatchLeaks searches repeatedly until ctx ends, and reports its findings to the Meter and the log. Every
// server does its own search, so that none depends on another. The search is cheap: Redis counts the keys
// without an expiry, and WatchLeaks visits keys only when that number has changed since the last search.
func (n *Node) WatchLeaks(ctx context.Context, l Leaks) {
	l = l.withDefaults()
	searched, found, logged := ownLasting, []string(nil), 0
	for wait := time.Duration(rand.Int64N(int64(l.Pause) + int64(l.Rest)/10)); pause.For(ctx, wait); wait = l.Rest { //nolint:gosec // it spreads the servers' searches
		lasting, err := n.lasting(ctx)
		news := found
		if err == nil && lasting != searched {
			news, err = n.searchLeaks(ctx, l)
		}
		if err != nil {
			continue // the node is down or not admitted; the next search reports its leaks
		}
		searched, found = lasting, news
		n.meter.Leaked(len(found))
		if len(found) != logged {
			n.logLeaks(found)
		}
		logged = len(found)
	}
}

// lasting returns the number of keys without an expiry, of any kind.
func (n *Node) lasting(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, max(n.opts.Timeout, time.Second))
	defer cancel()
	reply, err := n.client.Info(ctx, "keyspace").Result()
	if err != nil {
		return 0, explain(err)
	}
	line, ok := ParseInfo(reply)["db"+strconv.Itoa(n.client.Options().DB)]
	if !ok {
		return 0, nil // an empty database has no line
	}
	var keys, expiring int
	if _, err := fmt.Sscanf(line, "keys=%d,expires=%d", &keys, &expiring); err != nil {
		return 0, errUnreadable
	}
	return keys - expiring, nil
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
		if !pause.For(ctx, l.Pause) {
			return nil, ctx.Err()
		}
	}
}

// leakPage searches one page of keys. It returns the next cursor and the resources found.
func (n *Node) leakPage(ctx context.Context, cursor string, count int) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, max(n.opts.Timeout, time.Second))
	defer cancel()
	return n.read(ctx, leaksScript, "L", 1, cursor, count)
}
