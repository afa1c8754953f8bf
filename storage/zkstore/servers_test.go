package zkstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// ear notes the wakes that it hears.
type ear struct {
	mu    sync.Mutex
	wakes []string
	began int
}

func (e *ear) Wake(resource string, t node.Ticket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wakes = append(e.wakes, strings.Join([]string{resource, t.ID, t.Server, t.Holder}, "|"))
}

func (e *ear) Subscribed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.began++
}

func (e *ear) heard() (wakes []string, began int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wakes, e.began
}

// background runs f until the test ends.
func background(t *testing.T, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { f(ctx) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

func update(tb testing.TB, s *Store, fn func(replica.Tx)) {
	tb.Helper()
	err := s.Update(tb.Context(), func(tx replica.Tx) error {
		fn(tx)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func putRow(tb testing.TB, s *Store, key, value string, ttl time.Duration) {
	tb.Helper()
	update(tb, s, func(tx replica.Tx) { tx.Put(key, []byte(value), ttl) })
}

func getRow(tb testing.TB, s *Store, key string) (value string, left time.Duration) {
	tb.Helper()
	err := s.View(tb.Context(), func(tx replica.Tx) error {
		raw, l := tx.Get(key)
		value, left = string(raw), l
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return value, left
}

// increment adds to a number in a transaction.
func increment(ctx context.Context, s *Store, key string) error {
	return s.Update(ctx, func(tx replica.Tx) error {
		raw, _ := tx.Get(key)
		n, _ := strconv.Atoi(string(raw))
		tx.Put(key, []byte(strconv.Itoa(n+1)), time.Hour)
		return nil
	})
}

// What one process commits wakes another, whatever the names are made of, and messages
// come whole and in order.
func TestServersHearOneAnother(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	a, b := openStore(t, url, patient()), openStore(t, url, patient())
	e := &ear{}
	background(t, func(ctx context.Context) { a.Listen(ctx, "A", e) })
	heard := make(chan string, 100)
	background(t, func(ctx context.Context) { a.Hear(ctx, "topic", func(text string) { heard <- text }) })
	testenv.Eventually(t, 20*time.Second, func() error {
		if err := b.Tell(t.Context(), "topic", "hello"); err != nil || len(heard) == 0 {
			return fmt.Errorf("nothing heard: %w", err)
		}
		return nil
	})
	ticket := node.Ticket{ID: "t'1", Server: "A", Holder: "an ünusual\n'holder' \x00\xff"}
	update(t, b, func(tx replica.Tx) {
		tx.Notify("another's", node.Ticket{ID: "t", Server: "B"})
		tx.Notify("a b\nc", ticket)
	})
	testenv.Eventually(t, 20*time.Second, func() error {
		if wakes, _ := e.heard(); len(wakes) != 1 || wakes[0] != "a b\nc|t'1|A|"+ticket.Holder {
			return fmt.Errorf("heard %q", wakes)
		}
		return nil
	})
	for _, text := range []string{"", "ünicode\n", strings.Repeat("0123456789", 200_000), "last"} {
		if err := b.Tell(t.Context(), "topic", text); err != nil {
			t.Fatal(err)
		}
		for got := "hello"; got != text; {
			if got = <-heard; got != text && got != "hello" {
				t.Fatalf("heard %d bytes, want %d", len(got), len(text))
			}
		}
	}
}

// writers counts the updates of each server since the last of them began.
type writers struct {
	mu    sync.Mutex
	began [3]bool
	count [3]int
	all   int // updates, also those before
}

// sum is how many updates there were since the last server began.
func (w *writers) sum() int { return w.count[0] + w.count[1] + w.count[2] }

// noted adds an update, and reports whether each server now has enough, or one of them has
// got next to nothing.
func (w *writers) noted(server, enough int) (finished bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began[server] {
		w.began[server], w.count = true, [3]int{}
	}
	w.count[server]++
	w.all++
	return slices.Min(w.count[:]) >= enough || w.sum() > 20*enough
}

// Servers that write at the same time are serialised, and each gets its share, however
// slow the machine is: they write until each has written often.
func TestServersShareThePath(t *testing.T) {
	t.Parallel()
	const enough = 40
	url := newURL(t)
	stores := []*Store{openStore(t, url, patient()), openStore(t, url, patient()), openStore(t, url, patient())}
	ctx, finish := context.WithCancel(t.Context())
	defer finish()
	var all sync.WaitGroup
	var w writers
	for i, s := range stores {
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					if err := increment(context.Background(), s, "n"); err != nil {
						t.Error(err)
						finish()
					}
					if w.noted(i, enough) {
						finish()
					}
				}
			})
		}
	}
	all.Wait()
	if n, _ := getRow(t, stores[0], "n"); n != strconv.Itoa(w.all) {
		t.Errorf("%s after %d updates", n, w.all)
	}
	if slices.Min(w.count[:]) < w.sum()/10 {
		t.Errorf("the servers did %v of %d updates", w.count, w.sum())
	}
	t.Logf("%v of %d updates", w.count, w.sum())
}

// shape is how long the log is.
func (s *Store) shape() (entries, bytes, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mirror.Entries), s.mirror.Bytes(), s.mirror.Rows()
}

// The log follows the rows, through every kind of writing; servers that start read the
// same rows as those that were there all along; and an idle store writes nothing.
func TestLogFollowsTheRows(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	s, other := openStore(t, url, patient()), openStore(t, url, patient())
	value := bytes.Repeat([]byte("x"), 1000)
	putRow(t, s, "for good", "1", 0)
	for round := range 60 {
		update(t, s, func(tx replica.Tx) {
			for i := range 200 {
				tx.Put(fmt.Sprintf("row%d", (round*37+i)%1000), value, 3*time.Second)
			}
		})
		putRow(t, s, fmt.Sprintf("long%d", round), "1", time.Hour)
		if _, bytes, _ := s.shape(); bytes > 5<<20 {
			t.Fatalf("round %d: the log has %d bytes", round, bytes)
		}
	}
	fresh := openStore(t, url, patient())
	testenv.Eventually(t, 20*time.Second, func() error {
		for _, store := range []*Store{s, other, fresh} {
			if _, bytes, rows := store.shape(); rows != 61 || bytes > 3<<20 {
				return fmt.Errorf("%d rows, %d bytes", rows, bytes)
			}
		}
		return nil
	})
	for _, store := range []*Store{s, other, fresh} {
		var keys []string
		err := store.View(t.Context(), func(tx replica.Tx) error {
			keys = nil
			for _, row := range tx.Range("\x00", "\xff", 1000) {
				keys = append(keys, row.Key)
			}
			return nil
		})
		if err != nil || len(keys) != 61 || keys[0] != "for good" {
			t.Errorf("rows %q (%v)", keys, err)
		}
	}
	last := s.lastEntry()
	testenv.Eventually(t, 20*time.Second, func() error {
		now := s.lastEntry()
		defer func() { last = now }()
		pause(t.Context(), 500*time.Millisecond) // ten of the sweeper's passes
		if s.lastEntry() != now {
			return fmt.Errorf("an idle store writes on: %d, then %d", last, s.lastEntry())
		}
		return nil
	})
}

func (s *Store) lastEntry() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirror.last
}

// A commit whose answer is lost is made once.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	proxy := testenv.StartProxy(t, testenv.SharedZooKeeper(t))
	url := newURL(t)
	direct := openStore(t, url, patient())
	opts := patient()
	opts.Timeout = 20 * time.Second
	s := openStore(t, strings.Replace(url, testenv.SharedZooKeeper(t), proxy.Addr(), 1), opts)
	const rounds = 10
	for round := range rounds {
		getRow(t, s, "n") // it is connected
		before := direct.lastEntry()
		proxy.DropReplies(true)
		result := make(chan error, 1)
		go func() { result <- increment(t.Context(), s, "n") }()
		testenv.Eventually(t, 20*time.Second, func() error { // it is committed
			if direct.lastEntry() == before {
				return fmt.Errorf("round %d: nothing is committed", round)
			}
			return nil
		})
		if round%2 == 0 { // and overtaken, before the answer is asked for again
			putRow(t, direct, "other", strconv.Itoa(round), 0)
		}
		proxy.DropReplies(false)
		proxy.Reset()
		if err := <-result; err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if n, _ := getRow(t, direct, "n"); n != strconv.Itoa(rounds) {
		t.Errorf("%s after %d updates", n, rounds)
	}
}

// A jump of the leader's clock, and a leader with another clock, change nothing: rows go
// when their time has passed, on every server.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	var skew atomic.Int64
	opts := patient()
	opts.skew = skew.Load
	url := newURL(t)
	a, b, c := openStore(t, url, opts), openStore(t, url, opts), openStore(t, url, opts)
	for _, jump := range []time.Duration{time.Hour, -3 * time.Hour, 200 * time.Millisecond, 24 * time.Hour} {
		putRow(t, a, "long", "1", time.Minute)
		skew.Add(jump.Microseconds())
		for _, s := range []*Store{b, a, c} {
			if value, left := getRow(t, s, "long"); value != "1" || left > time.Minute || left < 50*time.Second {
				t.Errorf("after a jump by %s a row has %s left of a minute", jump, left)
			}
		}
		began := time.Now()
		putRow(t, b, "short", "1", 500*time.Millisecond)
		testenv.Eventually(t, 20*time.Second, func() error {
			if value, _ := getRow(t, a, "short"); value != "" {
				return fmt.Errorf("after a jump by %s a row stays", jump)
			}
			return nil
		})
		if took := time.Since(began); took < 500*time.Millisecond || took > 5*time.Second {
			t.Errorf("after a jump by %s a row of 500ms went after %s", jump, took)
		}
	}
}

// No row goes early because the leader's clock was set while no server ran.
func TestClockJumpsWhileClosed(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		var skew atomic.Int64
		opts := patient()
		opts.skew = skew.Load
		url := newURL(t)
		s := openStore(t, url, opts)
		putRow(t, s, "long", "1", time.Minute)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		skew.Add(jump.Microseconds())
		s = openStore(t, url, opts)
		if value, left := getRow(t, s, "long"); value != "1" || left > time.Minute || left < 50*time.Second {
			t.Errorf("after a jump by %s a row has %s left of a minute", jump, left)
		}
	}
}

// A read sees what another server has committed before, however new.
func TestReadsAreNotStale(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	a, b := openStore(t, url, patient()), openStore(t, url, patient())
	for i := range 100 {
		want := strconv.Itoa(i)
		putRow(t, a, "a", want, 0)
		if got, _ := getRow(t, b, "a"); got != want {
			t.Fatalf("read %q after %q was committed", got, want)
		}
	}
}

// A server starts while others commit: what it reads may be of the middle of a commit.
func TestServersStartWhileOthersCommit(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	busy := openStore(t, url, patient())
	background(t, func(ctx context.Context) {
		for ctx.Err() == nil {
			if err := increment(ctx, busy, "n"); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for range 5 {
		if err := openStore(t, url, patient()).Close(); err != nil {
			t.Error(err)
		}
	}
}
