package zkstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

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

// Servers that write at the same time are serialised and take turns. However slow the machine is, each gets its
// share.
func TestServersShareThePath(t *testing.T) {
	t.Parallel()
	const servers, each = 3, 60
	url := newURL(t)
	var counts [servers]atomic.Int64
	var all sync.WaitGroup
	var began sync.WaitGroup
	began.Add(servers)
	ctx, finish := context.WithCancel(t.Context())
	defer finish()
	for i := range servers {
		s := openStore(t, url, patient())
		for writer := range 4 {
			all.Go(func() {
				if writer == 0 {
					began.Done()
				}
				began.Wait()
				for ctx.Err() == nil {
					if err := increment(context.Background(), s, "n"); err != nil {
						t.Error(err)
						finish()
					}
					if counts[i].Add(1) == each {
						finish()
					}
				}
			})
		}
	}
	all.Wait()
	total, least := int64(0), int64(each)
	for i := range counts {
		total, least = total+counts[i].Load(), min(least, counts[i].Load())
	}
	t.Logf("counts %d %d %d", counts[0].Load(), counts[1].Load(), counts[2].Load())
	if n, _ := getRow(t, openStore(t, url, patient()), "n"); n != strconv.FormatInt(total, 10) {
		t.Errorf("%s after %d updates", n, total)
	}
	if least < each/2 {
		t.Errorf("one server did %d updates, another one %d", least, each)
	}
}

// shape returns the length of the log.
func shape(tb testing.TB, s *Store) (entries, bytes, rows int) {
	tb.Helper()
	names, err := s.service.children(tb.Context(), s.service.path(logName))
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		raw, err := s.service.data(tb.Context(), s.service.path(logName, name))
		if err != nil {
			tb.Fatal(err)
		}
		bytes += len(raw)
	}
	return len(names), bytes, rowsOf(tb, s)
}

// rowsOf returns the number of rows.
func rowsOf(tb testing.TB, s *Store) int {
	tb.Helper()
	rows, err := countRows(tb.Context(), s)
	if err != nil {
		tb.Fatal(err)
	}
	return rows
}

func countRows(ctx context.Context, s *Store) (rows int, err error) {
	err = s.View(ctx, func(tx replica.Tx) error {
		rows = len(tx.Range("\x00", "\xff", 1_000_000))
		return nil
	})
	return rows, err
}

// The length of the log follows the number of rows, through every kind of write. Servers that start read the same
// rows as those that were there before, and an idle store writes nothing.
func TestLogFollowsTheRows(t *testing.T) {
	testenv.Long(t, "a log in ZooKeeper that grows without end")
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
		if _, bytes, _ := shape(t, s); bytes > 5<<20 {
			t.Fatalf("round %d: the log has %d bytes", round, bytes)
		}
	}
	fresh := openStore(t, url, patient())
	testenv.Eventually(t, 20*time.Second, func() error {
		for _, store := range []*Store{s, other, fresh} {
			if _, bytes, rows := shape(t, store); rows != 61 || bytes > 3<<20 {
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
		pause.For(t.Context(), 4500*time.Millisecond) // two of the sweeper's passes
		if s.lastEntry() != now {
			return fmt.Errorf("an idle store writes on: %d, then %d", last, s.lastEntry())
		}
		return nil
	})
}

func (s *Store) lastEntry() int64 { return s.service.newest().Last }

// A commit whose reply is lost takes effect exactly once.
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

// A read whose confirmation is lost is confirmed again, because without one a connection may see any earlier state.
func TestALostConfirmation(t *testing.T) {
	t.Parallel()
	z := testenv.StartZooKeeper(t, 1)[0]
	proxy := testenv.StartProxy(t, z.Addr())
	s := openStore(t, Scheme+proxy.Addr()+"/fencelock", patient())
	putRow(t, s, "k", "1", 0)
	before := z.Zxid()
	proxy.DropReplies(true)
	read := make(chan error, 1)
	go func() { read <- s.View(t.Context(), func(replica.Tx) error { return nil }) }()
	testenv.Eventually(t, 20*time.Second, func() error { // it is confirmed
		if z.Zxid() == before {
			return errors.New("nothing asks for the head")
		}
		return nil
	})
	proxy.DropReplies(false)
	proxy.Reset()
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	const want = 3 // a confirmation, another session, a confirmation
	if got := z.Zxid() - before; got < want {
		t.Errorf("%d transactions, want %d: the read was not confirmed again", got, want)
	}
}

// A read sees what another server has committed before, however recently.
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

// A server starts while others commit, so it may read in the middle of a commit. It does not wait until the others
// stop.
func TestServersStartWhileOthersCommit(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	busy := openStore(t, url, patient())
	var commits atomic.Int64
	background(t, func(ctx context.Context) {
		for ctx.Err() == nil {
			if err := increment(ctx, busy, "n"); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			commits.Add(1)
		}
	})
	const most = 300 // it is about thirty
	for range 5 {
		before := commits.Load()
		if err := openStore(t, url, patient()).Close(); err != nil {
			t.Error(err)
		}
		if during := commits.Load() - before; during > most {
			t.Errorf("%d transactions were committed until a server had started, want %d at most", during, most)
		} else {
			t.Logf("%d transactions were committed until a server had started", during)
		}
	}
}
