package etcdstore

import (
	"context"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// leases are etcd's leases on which rows of this server hang. One is used for all rows
// that end a little before it, and never kept alive.
type leases struct {
	grant func(ctx context.Context, seconds int64) (*clientv3.LeaseGrantResponse, error)

	mu  sync.Mutex
	all []lease // in the order of their ends
}

type lease struct {
	id   clientv3.LeaseID
	ends time.Time // not before this
}

// slackUnit is what a row notes of how long before its lease it ends.
const slackUnit = time.Millisecond

// width is how long after a row its lease may end: a second for all but the longest, of
// which there would be too many.
func width(ttl time.Duration) time.Duration { return max(time.Second, ttl/3600) }

// find returns a lease for a row that ends at the moment, ttl from now. The row must
// never go before, since a lease's time is counted from before it was asked for.
func (l *leases) find(ctx context.Context, ends time.Time, ttl time.Duration) (lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, _ := slices.BinarySearchFunc(l.all, ends, func(l lease, t time.Time) int { return l.ends.Compare(t) })
	if at < len(l.all) && !l.all[at].ends.After(ends.Add(width(ttl)+time.Second)) {
		return l.all[at], nil
	}
	before := time.Now()
	seconds := int64((ends.Sub(before) + width(ttl) + time.Second - 1) / time.Second)
	granted, err := l.grant(ctx, max(seconds, 1))
	if err != nil {
		return lease{}, err
	}
	one := lease{id: granted.ID, ends: before.Add(time.Duration(granted.TTL) * time.Second)}
	l.all = slices.DeleteFunc(l.all, func(l lease) bool { return l.ends.Before(before) })
	at, _ = slices.BinarySearchFunc(l.all, one.ends, func(l lease, t time.Time) int { return l.ends.Compare(t) })
	l.all = slices.Insert(l.all, at, one)
	return one, nil
}

// forget forgets all: one of them is not there.
func (l *leases) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}
