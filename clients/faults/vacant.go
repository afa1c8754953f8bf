package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/internal/testenv"
)

// accounts is the number of accounts into which the workers deposit.
const accounts = 5

// An account is vacant if a client waits for it and no worker works on it: idle if its lock is free, orphaned
// if the lock is held. This is seen from outside: two looks at the lock, a moment apart, show the same state.
// Afterwards the workers report when they worked on which account.

const (
	lookEvery  = 100 * time.Millisecond
	lookWithin = 500 * time.Millisecond
	// apart is the maximum time, in seconds, between two looks that show one vacancy.
	apart = 1.0
	// worthCounting is how long a vacancy must last to count. A hand-over takes a moment, and so does a
	// worker between its grant and its work; on a busy machine both take longer.
	worthCounting = 0.4
	// mostVacant is how long accounts may be vacant for each fault, in seconds.
	mostVacant = 1.0
	// places is how long the tickets of a lost server keep their places, plus the time until the next waiter
	// tries.
	places = 4.0
)

// look is the state of an account's lock in a server's response, at some moment between from and to, in
// seconds on the machine's monotonic clock.
type look struct {
	account  int
	from, to float64
	held     bool
	token    int64
	wanted   bool // a request waits for the lock
}

// seconds returns the time of the machine's monotonic clock, which all processes share.
func seconds() float64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail: the clock exists
	return time.Duration(now.Nano()).Seconds()
}

// watch looks at every account until it is stopped.
type watch struct {
	servers []*testenv.Fencelock
	stop    context.CancelFunc
	running sync.WaitGroup
	looks   [accounts + 1][]look
}

func startWatch(t *testing.T, servers []*testenv.Fencelock) *watch {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &watch{servers: servers, stop: stop}
	for account := 1; account <= accounts; account++ {
		w.running.Go(func() { w.run(ctx, account) })
	}
	return w
}

func (w *watch) run(ctx context.Context, account int) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for n := account; ctx.Err() == nil; n++ {
		l, seen := lookAt(ctx, w.servers[n%len(w.servers)], account)
		if !seen {
			l, seen = lookAt(ctx, w.servers[(n+1)%len(w.servers)], account)
		}
		if seen {
			w.looks[account] = append(w.looks[account], l)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (w *watch) end() {
	w.stop()
	w.running.Wait()
}

func lookAt(ctx context.Context, s *testenv.Fencelock, account int) (l look, seen bool) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	l = look{account: account, from: seconds()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/locks/accounts%%2F%d", s.URL(), account), http.NoBody)
	if err != nil {
		return l, false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return l, false
	}
	defer func() { _ = resp.Body.Close() }()
	var lock struct {
		Held    bool  `json:"held"`
		Token   int64 `json:"fencing_token"`
		Waiters int   `json:"waiters"`
	}
	err = json.NewDecoder(resp.Body).Decode(&lock)
	l.held, l.token, l.wanted, l.to = lock.Held, lock.Token, lock.Waiters > 0, seconds()
	return l, err == nil && resp.StatusCode == http.StatusOK
}

// trouble is a fault, with its beginning and end in seconds on the machine's monotonic clock.
type trouble struct {
	name     string
	from, to float64
	server   bool // it took a server from its clients
	worker   bool // it took a worker from its leases
}

// vacancy is an uninterrupted period in which an account was vacant.
type vacancy struct {
	look
	counted float64
}

func (v *vacancy) kind() string {
	if v.held {
		return "orphaned"
	}
	return "idle"
}

// vacancies returns the periods in which the account was waited for and no worker worked on it.
func vacancies(looks []look, works []work) (all []vacancy) {
	var last *vacancy
	for i := 1; i < len(looks); i++ {
		a, b := looks[i-1], looks[i]
		same := a.held == b.held && a.token == b.token && b.from-a.to < apart && b.from > a.to
		at := slices.ContainsFunc(works, func(w work) bool { return w.account == a.account && w.begin <= b.to && a.from <= w.end })
		switch {
		case !same || !a.wanted || !b.wanted || at:
			last = nil
			continue
		case last == nil:
			all = append(all, vacancy{look: a})
			last = &all[len(all)-1]
			last.from = a.to
		}
		last.to = b.from
		last.counted += b.from - a.to
	}
	return slices.DeleteFunc(all, func(v vacancy) bool { return v.counted < worthCounting })
}

// excuse returns the name of the fault that allows a vacancy; "" if none does. The locks of a dead worker
// stay until their TTL ends, and other servers need a while to take over from a lost server.
func (v *vacancy) excuse(troubles []trouble) string {
	const ttl = 1.1
	i := slices.IndexFunc(troubles, func(f trouble) bool {
		return f.server && f.from <= v.to && v.from <= f.to+places || f.worker && v.held && f.from <= v.to && v.from <= f.from+ttl*workTTL.Seconds()
	})
	if i < 0 {
		return ""
	}
	return troubles[i].name
}

// judgeVacant adds up how long accounts were vacant, by cause. Without a cause, one second per fault is
// allowed.
func judgeVacant(t *testing.T, w *watch, works []work, troubles []trouble) {
	t.Helper()
	sums, unexcused := map[string]float64{}, 0.0
	for _, looks := range w.looks {
		for _, v := range vacancies(looks, works) {
			cause := v.excuse(troubles)
			if cause == "" {
				unexcused += v.counted
				cause = "nobody knows why"
				t.Logf("account %d was %s from %.3f to %.3f, token %d", v.account, v.kind(), v.from, v.to, v.token)
			}
			sums[v.kind()+", "+cause] += v.counted
		}
	}
	if unexcused > mostVacant*float64(len(troubles)) {
		t.Errorf("accounts were idle or orphaned for %.1f s without an excuse while somebody waited, in %d faults", unexcused, len(troubles))
	}
	var causes []string
	for _, cause := range slices.SortedFunc(maps.Keys(sums), cmp.Compare[string]) {
		causes = append(causes, fmt.Sprintf("%s: %.1f s", cause, sums[cause]))
	}
	t.Logf("%.1f idle and orphan seconds without an excuse; %s", unexcused, strings.Join(causes, "; "))
}
