package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/internal/vacancy"
)

// accounts is the number of accounts into which the workers deposit.
const accounts = 5

const (
	// worthCounting is how long a vacancy must last to count. A hand-over takes a moment, and so does a
	// worker between its grant and its work; on a busy machine both take longer.
	worthCounting = 400 * time.Millisecond
	// mostVacant is how long accounts may be vacant for each fault.
	mostVacant = time.Second
	// places is how long the tickets of a lost server keep their places, plus the time until the next waiter
	// tries.
	places = 4 * time.Second
)

func nameOf(account int) string { return fmt.Sprint("accounts/", account) }

// now returns the time of the machine's monotonic clock, which all processes share.
func now() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail: the clock exists
	return time.Duration(now.Nano())
}

// startWatch looks at every account until the context ends.
func startWatch(ctx context.Context, servers []*testenv.Fencelock) *vacancy.Watch {
	var names []string
	for account := 1; account <= accounts; account++ {
		names = append(names, nameOf(account))
	}
	return vacancy.Start(ctx, names, vacancy.Asked{
		Servers: len(servers), Within: 500 * time.Millisecond, Now: now,
		Lock: func(ctx context.Context, server int, resource string) (lock wire.Lock, ok bool) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, servers[server].URL()+"/locks/"+resource, http.NoBody)
			if err != nil {
				return lock, false
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return lock, false
			}
			defer func() { _ = resp.Body.Close() }()
			err = json.NewDecoder(resp.Body).Decode(&lock)
			return lock, err == nil && resp.StatusCode == http.StatusOK
		},
	})
}

// trouble is a fault, with its beginning and end on the machine's monotonic clock.
type trouble struct {
	name     string
	from, to time.Duration
	server   bool // it took a server from its clients
	worker   bool // it took a worker from its leases
}

// vacancies returns the periods in which the account was waited for and no worker worked on it. The fault that allows
// a vacancy is its cause.
func vacancies(looks []vacancy.Look, account int, works []work, troubles []trouble) []vacancy.Run {
	for i := range looks { // all leases have the same holder
		looks[i].Label = fmt.Sprint(looks[i].Token)
	}
	runs := vacancy.Find(looks, func(a, b *vacancy.Look) (vacancy.Cause, bool) {
		at := slices.ContainsFunc(works, func(w work) bool { return w.account == account && w.begin <= b.To && a.From <= w.end })
		return vacancy.Cause{Kind: a.Kind()}, a.Waiters > 0 && b.Waiters > 0 && !at
	})
	runs = slices.DeleteFunc(runs, func(r vacancy.Run) bool { return r.Counted < worthCounting })
	for i := range runs {
		runs[i].Why = excuse(&runs[i], troubles)
		runs[i].Excused = runs[i].Why != ""
	}
	return runs
}

// excuse returns the name of the fault that allows a vacancy; "" if none does. The locks of a dead worker
// stay until their TTL ends, and other servers need a while to take over from a lost server.
func excuse(v *vacancy.Run, troubles []trouble) string {
	const ttl = workTTL + workTTL/10
	i := slices.IndexFunc(troubles, func(f trouble) bool {
		return f.server && f.from <= v.To && v.From <= f.to+places || f.worker && v.Kind == vacancy.Orphaned && f.from <= v.To && v.From <= f.from+ttl
	})
	if i < 0 {
		return ""
	}
	return troubles[i].name
}

// judgeVacant adds up how long accounts were vacant, by cause. Without a cause, one second per fault is
// allowed.
func judgeVacant(t *testing.T, seen map[string][]vacancy.Look, works []work, troubles []trouble) {
	t.Helper()
	sums := vacancy.Sums{}
	for account := 1; account <= accounts; account++ {
		runs := vacancies(seen[nameOf(account)], account, works, troubles)
		sums.Count(runs)
		for _, v := range runs {
			if !v.Excused {
				t.Logf("account %d was %s from %s to %s, token %d, and nobody knows why", account, v.Kind, v.From, v.To, v.Token)
			}
		}
	}
	if unexcused := sums.Of(vacancy.Idle, false) + sums.Of(vacancy.Orphaned, false); unexcused > mostVacant*time.Duration(len(troubles)) {
		t.Errorf("accounts were idle or orphaned for %s without an excuse while somebody waited, in %d faults", unexcused, len(troubles))
	}
	t.Log(sums)
}
