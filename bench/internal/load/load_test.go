package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
)

// locks is a lock service made of a mutex a resource.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

func (l *locks) take(ctx context.Context, c peer.Claim) error {
	for {
		l.mu.Lock()
		ch, ok := l.held[c.Resource]
		if !ok {
			l.held[c.Resource] = make(chan struct{})
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		if c.Wait == 0 {
			time.Sleep(100 * time.Microsecond) // so that the holder gets to run
			return peer.ErrBusy
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *locks) give(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[resource])
	delete(l.held, resource)
}

type fake struct {
	*locks
	fail error
	open sync.WaitGroup
}

func (*fake) Name() string { return "fake" }
func (f *fake) Open(context.Context) (peer.Session, error) {
	f.open.Add(1)
	return &fakeSession{fake: f}, nil
}
func (*fake) Close() error { return nil }

type fakeSession struct {
	*fake
	resource string
}

func (s *fakeSession) Acquire(ctx context.Context, c peer.Claim) error {
	if s.fail != nil {
		return s.fail
	}
	s.resource = c.Resource
	return s.take(ctx, c)
}
func (s *fakeSession) Release(context.Context) error {
	s.give(s.resource)
	return nil
}
func (s *fakeSession) Close() error {
	s.open.Done()
	return nil
}

func newFake() *fake { return &fake{locks: &locks{held: map[string]chan struct{}{}}} }

func noUsage() Usage { return Usage{} }

func job(workers int, resource string, wait time.Duration) Job {
	return Job{
		Workers: workers, Warm: 5 * time.Millisecond, Measure: 50 * time.Millisecond,
		Claim: func(worker, _ int) peer.Claim {
			name := strings.ReplaceAll(resource, "#", string(rune('a'+worker)))
			return peer.Claim{Resource: name, TTL: time.Second, Wait: wait}
		},
	}
}

// run repeats a round in which nothing was counted: on a busy machine it may be
// over before any worker got to run.
func run(t *testing.T, p peer.Peer, j Job, meter func() Usage) (o Outcome) {
	t.Helper()
	for range 50 {
		var err error
		if o, err = Run(t.Context(), p, j, meter); err != nil {
			t.Fatal(err)
		}
		if o.Pairs > 0 {
			break
		}
	}
	return o
}

func TestRunCounts(t *testing.T) {
	f, j := newFake(), job(4, "#", 0)
	used := Usage{}
	o := run(t, f, j, func() Usage { used.Load += time.Second; return used })
	if o.Pairs == 0 || o.Busy != 0 || o.Failed != 0 || o.Acquire.Count != o.Pairs || o.CPU.Load != time.Second {
		t.Errorf("got %+v", o)
	}
	f.open.Wait()
}

func TestRunCountsRefusals(t *testing.T) {
	if o := run(t, newFake(), job(8, "one", 0), noUsage); o.Pairs == 0 {
		t.Errorf("got %+v", o)
	}
}

func TestRunReportsFailures(t *testing.T) {
	f := newFake()
	f.fail = errors.New("out of order")
	o, err := Run(t.Context(), f, job(2, "#", 0), noUsage)
	if err != nil || o.Failed == 0 || o.Pairs != 0 || o.Err != "out of order" {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestHotRunTimesHandoffs(t *testing.T) {
	f, j := newFake(), job(16, "one", time.Minute)
	j.Hot, j.Hold = true, time.Millisecond
	o := run(t, f, j, noUsage)
	if o.Pairs == 0 || o.Handoff.Count == 0 || o.Turnover.Count != o.Handoff.Count || o.Held.P50 < time.Millisecond || o.Rate() > 1000 {
		t.Errorf("got %+v", o)
	}
}

// With one place in the queue, the worker that released is not the next holder.
func TestNobodyHandsOverToHimself(t *testing.T) {
	f, j := newFake(), job(1, "one", time.Minute)
	j.Hot = true
	order := &ordered{Peer: f}
	for len(order.holders) < 10 { // on a busy machine a round has few
		if _, err := Run(t.Context(), order, j, noUsage); err != nil {
			t.Fatal(err)
		}
	}
	again := 0
	for i := 1; i < len(order.holders); i++ {
		if order.holders[i] == order.holders[i-1] {
			again++ // no other worker was in the queue yet
		}
	}
	if n := len(order.holders); again > n/5 {
		t.Errorf("%d of %d grants went to who had it before", again, n)
	}
}

// ordered remembers in which order its sessions were granted.
type ordered struct {
	peer.Peer
	mu      sync.Mutex
	opened  int
	holders []int
}

func (o *ordered) Open(ctx context.Context) (peer.Session, error) {
	s, err := o.Peer.Open(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened++
	return &orderedSession{Session: s, ordered: o, number: o.opened}, err
}

type orderedSession struct {
	peer.Session
	*ordered
	number int
}

func (s *orderedSession) Acquire(ctx context.Context, c peer.Claim) error {
	err := s.Session.Acquire(ctx, c)
	if err == nil {
		s.mu.Lock()
		s.holders = append(s.holders, s.number)
		s.mu.Unlock()
	}
	return err
}

func (s *orderedSession) Release(ctx context.Context) error {
	time.Sleep(200 * time.Microsecond) // so that the others get to run
	return s.Session.Release(ctx)
}

func TestGrantHeardOfBeforeTheRelease(t *testing.T) {
	var h hotspot
	r := &record{w: &window{}}
	r.w.phase.Store(measuring)
	at := func(ms int) time.Time { return time.UnixMilli(int64(1000 + ms)) }
	h.granted(at(0), r)
	h.released(turn{acquired: at(0), releasing: at(1), released: at(2)}, r)
	h.granted(at(5), r) // 3 ms after the release
	h.granted(at(9), r) // the release in between is not known yet
	h.released(turn{acquired: at(5), releasing: at(8), released: at(10)}, r)
	h.granted(at(20), r) // the release before this one is not known yet either
	h.released(turn{acquired: at(9), releasing: at(19), released: at(21)}, r)
	h.released(turn{acquired: at(20), releasing: at(22), released: at(23)}, r)
	h.granted(at(24), r)
	want := []time.Duration{3 * time.Millisecond, 0, 0, time.Millisecond}
	if !slices.Equal(r.handoffs, want) {
		t.Errorf("got %v", r.handoffs)
	}
}

// serve is a fencelock server as far as the dialect sees it.
func serve(t *testing.T, l *locks) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPost:
			var body struct {
				Resource string `json:"resource"`
			}
			_ = json.NewDecoder(r.Body).Decode(&body)
			if err := l.take(r.Context(), peer.Claim{Resource: body.Resource}); err != nil {
				w.WriteHeader(http.StatusConflict)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"lease_id":%q}`, body.Resource)
		case http.MethodDelete:
			l.give(r.Header.Get("Fencelock-Lease"))
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestRunOverHTTP(t *testing.T) {
	l := &locks{held: map[string]chan struct{}{}}
	o := run(t, peer.NewHTTP(serve(t, l)), job(4, "#", 0), noUsage)
	if o.Pairs == 0 || o.Failed != 0 || o.Busy != 0 {
		t.Errorf("got %+v", o)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) != 0 {
		t.Errorf("still held: %v", l.held)
	}
}

func TestRunWithoutServer(t *testing.T) {
	j := job(1, "#", 0)
	j.Measure = time.Hour
	if _, err := Run(t.Context(), peer.NewHTTP("127.0.0.1:1"), j, noUsage); err == nil {
		t.Error("no error")
	}
}
