package redisnode

import (
	"context"
	"math/rand/v2"
	"time"
)

// Leaks says how a node is searched for locks that would stay for ever, because
// somebody took their expiry away (PERSIST, a restored dump). The zero value of
// a field takes its default.
type Leaks struct {
	Page  int           // keys of one step; default 200, about a quarter of a millisecond of the server's time
	Pause time.Duration // between steps; default 100ms
	Rest  time.Duration // between the end of a search and the next; default 10m
}

func (l Leaks) withDefaults() Leaks {
	if l.Page == 0 {
		l.Page = 200
	}
	if l.Pause == 0 {
		l.Pause = 100 * time.Millisecond
	}
	if l.Rest == 0 {
		l.Rest = 10 * time.Minute
	}
	return l
}

// WatchLeaks searches again and again until ctx ends, and tells the Meter and
// the log what it finds. Several servers on one node search side by side: each
// would otherwise depend on another's being there.
func (n *Node) WatchLeaks(ctx context.Context, l Leaks) {
	l = l.withDefaults()
	told := 0
	for pause := time.Duration(rand.Int64N(int64(l.Pause) + int64(l.Rest)/10)); rest(ctx, pause); pause = l.Rest { //nolint:gosec // so that servers do not step in time
		found, whole := n.searchLeaks(ctx, l)
		if !whole {
			continue // the node is away, or about to be purged: the next search tells
		}
		n.meter.Leaked(len(found))
		if len(found) != told {
			n.tellLeaks(found)
		}
		told = len(found)
	}
}

func (n *Node) tellLeaks(found []string) {
	const examples = 5
	if len(found) == 0 {
		n.opts.Logger.Info("no locks without an expiry any more", "node", n.name)
		return
	}
	n.opts.Logger.Warn("locks without an expiry: nobody gets them again until somebody breaks them (DELETE /locks/{resource}), or gives them an expiry on the node (PEXPIRE l:{resource} 60000); nothing of this service makes such, so find who changes the keys of this database",
		"node", n.name, "locks", len(found), "some", found[:min(len(found), examples)])
}

// searchLeaks looks at every key once. What it returns is whole unless the node
// failed meanwhile.
func (n *Node) searchLeaks(ctx context.Context, l Leaks) (found []string, whole bool) {
	seen := make(map[string]bool) // a key may be scanned twice
	for cursor := "0"; ; {
		page, next, err := n.leakPage(ctx, cursor, l.Page)
		if err != nil {
			return nil, false
		}
		for _, resource := range page {
			if !seen[resource] {
				seen[resource] = true
				found = append(found, resource)
			}
		}
		if cursor = next; cursor == "0" {
			return found, true
		}
		if !rest(ctx, l.Pause) {
			return nil, false
		}
	}
}

func (n *Node) leakPage(ctx context.Context, cursor string, count int) (resources []string, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(n.opts.Timeout, time.Second))
	defer cancel()
	reply, err := n.scripts.leaks.call(ctx, n.client, n.mark(), cursor, count)
	if err := reading(reply, err, "L"); err != nil {
		return nil, "", err
	}
	if len(reply) < 2 {
		return nil, "", errUnreadable
	}
	for _, resource := range reply[2:] {
		resources = append(resources, str(resource))
	}
	return resources, str(reply[1]), nil
}

// rest waits; false when ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
