package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

var faultsPage = flag.String("faults", "", "write the table of faults to this page")

// The bounds of a row of the table.
const (
	// readinessLags is for how long /readyz may contradict what clients get.
	readinessLags = 2 * time.Second
	// faultLasts is how long a fault lasts at least: several times what the service takes to see it.
	faultLasts = 6 * time.Second
	// faultMaxTTL is the longest TTL of the servers, which a loss costs.
	faultMaxTTL = 3 * time.Second
)

// fault is a row of the table.
type fault struct {
	engine, name string
	begin, end   func()
	says         string        // is in the reason of /readyz, or in the log
	serves       bool          // locks are granted all the while
	within       time.Duration // after its end locks are granted again; default 5 s
	down         bool          // the server itself does not answer
}

// look is one result of a request for a lock, or of a request to /readyz.
type look struct {
	at    time.Time // of the answer
	sound bool      // granted, or ready
	whole bool      // every node votes
	says  string
}

// observer asks for locks and for the readiness again and again.
type observer struct {
	p      *process
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu            sync.Mutex
	locks, readys []look
}

func observe(p *process) *observer {
	ctx, cancel := context.WithCancel(p.t.Context())
	o := &observer{p: p, cancel: cancel}
	every := func(pause time.Duration, into *[]look, look func(context.Context) look) {
		o.done.Go(func() {
			for ctx.Err() == nil {
				seen := look(ctx)
				if ctx.Err() != nil { // it was given up
					return
				}
				seen.at = time.Now()
				o.mu.Lock()
				*into = append(*into, seen)
				o.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	every(20*time.Millisecond, &o.locks, o.lock)
	every(100*time.Millisecond, &o.readys, o.ready)
	return o
}

// lock takes a free lock and releases it.
func (o *observer) lock(ctx context.Context) look {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var lease wire.Lease
	resp, err := o.p.try(ctx, &lease, "POST", "/locks", fmt.Sprintf(`{"resource":"fault/%d","ttl_ms":3000}`, time.Now().UnixNano()))
	switch {
	case err != nil:
		return look{says: "no answer"}
	case resp.StatusCode != http.StatusCreated:
		return look{says: fmt.Sprint(resp.StatusCode)}
	}
	_, _ = o.p.try(ctx, nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
	return look{sound: true, says: "201"}
}

func (o *observer) ready(ctx context.Context) look {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var ready wire.Ready
	resp, err := o.p.try(ctx, &ready, "GET", "/readyz", "")
	if err != nil {
		return look{says: "no answer"}
	}
	says := []string{}
	for _, n := range ready.Nodes {
		if n.Reason != "" && !slices.Contains(says, n.Reason) {
			says = append(says, n.Reason)
		}
	}
	return look{sound: resp.StatusCode == http.StatusOK, whole: ready.Voting == len(ready.Nodes), says: strings.Join(says, "; ")}
}

func (o *observer) end() {
	o.cancel()
	o.done.Wait()
}

// grantedAfter waits for the first lock that is granted after a time.
func (o *observer) grantedAfter(since time.Time, within time.Duration) (took time.Duration) {
	o.p.t.Helper()
	testenv.Eventually(o.p.t, within+30*time.Second, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, l := range o.locks {
			if l.sound && l.at.After(since) {
				took = l.at.Sub(since)
				return nil
			}
		}
		return fmt.Errorf("nothing is granted; readiness: %+v", o.lastReady())
	})
	return took
}

// lastReady returns the last result of /readyz. The caller holds o.mu.
func (o *observer) lastReady() (last look) {
	if n := len(o.readys); n > 0 {
		last = o.readys[n-1]
	}
	return last
}

// untilReady waits until a result of /readyz satisfies done.
func (o *observer) untilReady(done func(look) bool) {
	o.p.t.Helper()
	testenv.Eventually(o.p.t, 30*time.Second, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if last := o.lastReady(); !done(last) {
			return fmt.Errorf("/readyz: %+v", last)
		}
		return nil
	})
}

// awaitSaid waits until /readyz reports the text after `since`, or the log contains it after its first `logged`
// bytes. It waits, because the server finds out which lock a transaction waits for with a second connection and
// within half of the transaction's time limit. A busy machine does not always manage that.
func (o *observer) awaitSaid(what string, since time.Time, logged int) {
	o.p.t.Helper()
	testenv.Eventually(o.p.t, 30*time.Second, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		said := o.p.Logs()[logged:]
		for _, l := range o.readys {
			if l.at.After(since) {
				said += l.says + "\n"
			}
		}
		if !strings.Contains(said, what) {
			return fmt.Errorf("%q is not said: %s", what, said)
		}
		return nil
	})
}

// contradicts returns the longest time for which /readyz reported another state than clients saw.
func (o *observer) contradicts() (longest time.Duration, when string) {
	type event struct {
		look
		lock bool
	}
	var events []event
	for _, l := range o.locks {
		events = append(events, event{l, true})
	}
	for _, l := range o.readys {
		if l.says != "no answer" { // then nothing wrong was said
			events = append(events, event{l, false})
		}
	}
	slices.SortFunc(events, func(a, b event) int { return a.at.Compare(b.at) })
	granted, ready := true, true
	var since time.Time
	for _, e := range events {
		if !since.IsZero() && e.at.Sub(since) > longest {
			longest, when = e.at.Sub(since), fmt.Sprintf("ready=%t granted=%t from %s", ready, granted, since.Format("05.000"))
		}
		if e.lock {
			granted = e.sound
		} else {
			ready = e.sound
		}
		switch {
		case granted == ready:
			since = time.Time{}
		case since.IsZero():
			since = e.at
		}
	}
	return longest, when
}

// result has the measured columns of a row of the table.
type result struct {
	fault
	clients, ready, message string
	back                    time.Duration
}

// run makes the fault, ends it, and checks what is promised about it.
func (f fault) run(t *testing.T, p *process) result {
	t.Helper()
	o := observe(p)
	o.grantedAfter(time.Now(), 10*time.Second)
	o.untilReady(func(l look) bool { return l.whole })
	logged := len(p.Logs())
	began := time.Now()
	f.begin()
	time.Sleep(faultLasts)
	o.awaitSaid(f.says, began, logged)
	f.end()
	ended := time.Now()
	within := cmp.Or(f.within, 5*time.Second)
	back := o.grantedAfter(ended, within)
	o.untilReady(func(l look) bool { return l.sound })
	o.end()
	r := result{fault: f, back: back}
	r.clients = during(o.locks, began, ended)
	r.ready, r.message = o.readiness(began)
	if back > within {
		t.Errorf("locks are granted %s after its end, want %s", back, within)
	}
	if wrong, when := o.contradicts(); wrong > readinessLags && !f.down {
		t.Errorf("/readyz contradicts the clients for %s (%s)", wrong, when)
	}
	if f.serves && (!strings.HasPrefix(r.clients, "201") || r.ready != "200") {
		t.Errorf("a fault that clients are not to notice: %s, and /readyz %s (%s)", r.clients, r.ready, r.message)
	}
	t.Logf("clients %s | readyz %s | %s | back after %s", r.clients, r.ready, r.message, back.Round(10*time.Millisecond))
	return r
}

// during returns the different results between two times, the most frequent first. It leaves out those that are at
// most one in twenty, because a fault begins and ends in the middle of requests.
func during(looks []look, began, ended time.Time) string {
	counts, all := map[string]int{}, 0
	for _, l := range looks {
		if l.at.After(began) && l.at.Before(ended) {
			counts[l.says]++
			all++
		}
	}
	answers := make([]string, 0, len(counts))
	for answer, n := range counts {
		if 20*n > all {
			answers = append(answers, answer)
		}
	}
	slices.SortFunc(answers, func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) })
	return strings.Join(answers, ", ")
}

// readiness returns the first bad result of /readyz with its delay, and the reason that /readyz gave most often.
func (o *observer) readiness(began time.Time) (ready, message string) {
	ready = "200"
	given := map[string]int{}
	for _, l := range o.readys {
		if l.sound || l.at.Before(began) {
			continue
		}
		if ready == "200" {
			ready = fmt.Sprintf("503 after %.1f s", l.at.Sub(began).Seconds())
			if l.says == "no answer" {
				ready = "no answer"
			}
		}
		if l.says != "no answer" && !strings.Contains(l.says, "quarantined") {
			given[l.says]++
			if given[l.says] > given[message] {
				message = l.says
			}
		}
	}
	return ready, message
}

// changing matches the parts of a message that differ from run to run.
var changing = regexp.MustCompile(`127\.0\.0\.1:\d+|process \d+|backend\(\d+\)|/tmp/\S+|(owner|test)_[a-z0-9]{10}`)

func (r result) row() string {
	message := changing.ReplaceAllStringFunc(r.message, func(s string) string {
		return map[byte]string{'1': "host:port", 'p': "process N", 'b': "backend(N)", '/': "FILE", 'o': "role", 't': "database"}[s[0]]
	})
	message = strings.ReplaceAll(message, "|", "¦")
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %.1f |", r.engine, r.name, r.clients, r.ready, cmp.Or(message, "–"), r.back.Seconds())
}

// TestFaultsOfWriting runs the faults that stop writes and leave reads working.
func TestFaultsOfWriting(t *testing.T) {
	testenv.Long(t, "a fault of the embedded file that /readyz contradicts")
	t.Parallel()
	f := newPostgresFaults(t)
	for _, row := range []fault{f.standby(), f.lock()} {
		t.Run(row.name, func(t *testing.T) { row.run(t, f.p) })
	}
}

// TestSoakFaultTable makes every fault of the table, and writes it where -faults says.
func TestSoakFaultTable(t *testing.T) {
	testenv.Soak(t, "a fault whose row in docs/reference/faults.md is not true")
	var rows []string
	for _, engine := range []struct {
		name  string
		start func(*testing.T) (*process, []fault)
	}{
		{"embedded file", embeddedFaults}, {"3 Redis", redisFaults}, {"Postgres", postgresFaultsAll}, {"etcd", etcdFaults},
		{"etcd with users", etcdUserFaults}, {"ZooKeeper", zookeeperFaults},
	} {
		t.Run(engine.name, func(t *testing.T) {
			p, faults := engine.start(t)
			for _, row := range faults {
				row.engine = engine.name
				t.Run(row.name, func(t *testing.T) { rows = append(rows, row.run(t, p).row()) })
			}
		})
	}
	if *faultsPage == "" {
		return
	}
	old, err := os.ReadFile(*faultsPage)
	if err != nil {
		t.Fatal(err)
	}
	page := fmt.Sprintf(faultsHead, faultLasts/time.Second, faultMaxTTL/time.Second) + strings.Join(rows, "\n") + "\n"
	if i := bytes.Index(old, []byte("\n## ")); i >= 0 {
		page += string(old[i:]) // what follows the table
	}
	if err := os.WriteFile(*faultsPage, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
}

const faultsHead = `# Faults: what clients get, what an operator sees, and when it is over

Measured by ` + "`make faults`" + `, which writes this table and [the last one](#time-back-after-an-outage), and fails if /readyz contradicts what clients get for longer than 2 s.
Each fault lasts %d s, under a client that takes free locks; the longest TTL (` + "`FENCELOCK_MAX_TTL`" + `) is %d s.
What loses data costs the longest TTL from the moment of the loss, so with the default of 60 s these rows take 57 s longer.
The last column is the time from the end of the fault to the first lock that is granted.

| locks in | fault | clients get | ` + "`/readyz`" + ` | reason | seconds until locks are granted |
| --- | --- | --- | --- | --- | --- |
`
