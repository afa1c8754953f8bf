package optimistic

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/replica/storetest"
)

func open(t *testing.T, service Service) *Store {
	t.Helper()
	s := New(service, Options{Timeout: 20 * time.Second, Pause: time.Millisecond})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Helper()
		service := newMemory()
		s := open(t, service)
		empty := service.save()
		return storetest.Harness{
			Store:  s,
			Slack:  time.Second,
			Reopen: func() replica.Store { return open(t, service) },
			Lose:   func() { service.restore(empty) },
			Beside: func() replica.Store { return open(t, service) },
		}
	})
}

// TestConformance runs the suite of nodes on this store.
func TestConformance(t *testing.T) {
	nodetest.RunReplica(t, func(t *testing.T, wanted nodetest.Wanted) nodetest.Harness {
		t.Helper()
		service := newMemory()
		s := open(t, service)
		n, err := replica.New(t.Context(), "memory", s, replica.Options{Rules: replica.Rules{CounterTTL: wanted.CounterTTL}, Bootstrap: !wanted.Blank})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
		return nodetest.Harness{Node: n, Restart: func() { restart(t, s, service) }, Spoil: nodetest.SpoilRow(t, s)}
	})
}

// restart gives the rows another life.
func restart(t *testing.T, s *Store, service *memory) {
	t.Helper()
	before := service.save()
	update(t, s, func(tx replica.Tx) { tx.Put("x", nil, time.Millisecond) })
	service.restore(before)
}

func update(t *testing.T, s *Store, fn func(replica.Tx)) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx replica.Tx) error { fn(tx); return nil }); err != nil {
		t.Error(err)
	}
}

func put(t *testing.T, s *Store, key, value string) {
	t.Helper()
	update(t, s, func(tx replica.Tx) { tx.Put(key, []byte(value), time.Hour) })
}

func get(t *testing.T, s *Store, key string) (value string) {
	t.Helper()
	err := s.View(t.Context(), func(tx replica.Tx) error {
		raw, _ := tx.Get(key)
		value = string(raw)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return value
}

// If another server writes between the reads and the commit of a transaction, that is noticed, also if it writes in a
// range that was read.
func TestConflicts(t *testing.T) {
	count := func(tx replica.Tx) { tx.Put("n", []byte(strconv.Itoa(len(tx.Range("r", "s", 100)))), 0) }
	for name, test := range map[string]struct {
		other func(replica.Tx)
		want  string
	}{
		"a row is inserted in a range": {func(tx replica.Tx) { tx.Put("r3", nil, 0) }, "3"},
		"a row of a range is deleted":  {func(tx replica.Tx) { tx.Delete("r1") }, "1"},
		"all is purged":                {func(tx replica.Tx) { tx.Purge() }, "0"},
		"another row is changed":       {func(tx replica.Tx) { tx.Put("other", nil, 0) }, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			service := newMemory()
			a, b := open(t, service), open(t, service)
			update(t, a, func(tx replica.Tx) { tx.Put("r1", nil, 0); tx.Put("r2", nil, 0) })
			get(t, b, "r1")
			service.refused = 0 // both wanted to begin the life
			service.before = func(*Commit) { update(t, b, test.other) }
			update(t, a, count)
			if got := get(t, b, "n"); got != test.want || service.refused != 1 {
				t.Errorf("%s rows were counted and %d commits refused, want %s and 1", got, service.refused, test.want)
			}
		})
	}
}

// The test above notices a service that checks no commit for conflicts.
func TestConflictsThatAreMissed(t *testing.T) {
	service := newMemory()
	a, b := open(t, service), open(t, service)
	put(t, a, "r1", "")
	get(t, b, "r1")
	service.deaf = true
	service.before = func(*Commit) { put(t, b, "r2", "") }
	update(t, a, func(tx replica.Tx) { tx.Put("n", []byte(strconv.Itoa(len(tx.Range("r", "s", 9)))), 0) })
	if got := get(t, b, "n"); got != "1" {
		t.Errorf("%s rows were counted: the fault is none", got)
	}
}

// The deletions of a transaction are computed before the copy changes. With -race this test fails if the copy is read
// without its lock.
func TestDeletionsWhileTheCopyChanges(t *testing.T) {
	service := newMemory()
	a, b := open(t, service), open(t, service)
	const rounds, rows = 1000, 200
	var other sync.WaitGroup
	defer other.Wait()
	other.Go(func() {
		for i := range rounds {
			put(t, b, strconv.Itoa(i%rows), "")
		}
	})
	for range rounds {
		update(t, a, func(tx replica.Tx) {
			for i := range rows {
				tx.Delete(strconv.Itoa(i))
			}
		})
	}
}

// The result of a transaction that does not write is as new as its call, even if the copy is older.
func TestReadsAreLinearizable(t *testing.T) {
	service := newMemory()
	a, b := open(t, service), open(t, service)
	put(t, a, "k", "old")
	get(t, b, "k")
	service.mu.Lock()
	service.lag = make(chan struct{})
	lag := service.lag
	service.mu.Unlock()
	put(t, a, "k", "x") // wakes those who wait for changes: the next waits for the lag
	put(t, a, "k", "new")
	go func() {
		defer close(lag)
		for range 100 {
			if _, _, err := service.Head(t.Context()); err != nil {
				return
			}
		}
	}()
	if got := get(t, b, "k"); got != "new" {
		t.Errorf("a view has %q", got)
	}
	failure := errors.New("on purpose")
	put(t, a, "k", "newest")
	err := b.Update(t.Context(), func(tx replica.Tx) error {
		if raw, _ := tx.Get("k"); string(raw) != "newest" {
			return nil
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("an update that writes nothing ran on an old copy only: %v", err)
	}
}

// Servers that commit all the time take turns, so few commits are refused. Several servers together commit as often
// as one alone, and each commits as often as the others.
func TestTurns(t *testing.T) {
	const each = 100
	for _, servers := range []int{1, 2, 4} {
		synctest.Test(t, func(t *testing.T) {
			service := newMemory()
			service.latency = 4 * time.Millisecond
			began, ends := time.Now(), make([]time.Duration, servers)
			var all sync.WaitGroup
			var stores []*Store
			for i := range servers {
				s := New(service, Options{})
				stores = append(stores, s)
				all.Go(func() {
					for range each {
						increment(t, s)
					}
					ends[i] = time.Since(began)
				})
			}
			all.Wait()
			if got := get(t, stores[0], "n"); got != strconv.Itoa(servers*each) {
				t.Errorf("%s updates, want %d", got, servers*each)
			}
			least := time.Duration(servers*each) * service.latency
			if first, last := slices.Min(ends), slices.Max(ends); last > least*11/10 || first < last*9/10 {
				t.Errorf("%d servers ended after %v: what commits alone take is %s", servers, ends, least)
			}
			for _, s := range stores {
				_ = s.Close()
			}
			if service.refused > service.commits/10 {
				t.Errorf("%d servers: %d commits were refused, %d were not", servers, service.refused, service.commits)
			}
		})
	}
}

func increment(t *testing.T, s *Store) {
	t.Helper()
	update(t, s, func(tx replica.Tx) {
		raw, _ := tx.Get("n")
		n, _ := strconv.Atoi(string(raw))
		tx.Put("n", []byte(strconv.Itoa(n+1)), 0)
	})
}

// takeTurns makes servers take turns.
func (s *memory) takeTurns(servers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, _ := decodeHead(s.head)
	h.turns = servers
	raw := h.encode()
	s.head = raw
	s.wrote = s.publish(&Change{Head: &raw})
}

// A server that does not use its turn delays the others only once.
func TestATurnThatIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newMemory()
		s := New(service, Options{})
		put(t, s, "k", "1")
		service.takeTurns("stopped")
		synctest.Wait()
		for _, want := range []time.Duration{250 * time.Millisecond, 0} {
			began := time.Now()
			put(t, s, "k", "2")
			if took := time.Since(began); took != want {
				t.Errorf("the commit took %s, want %s", took, want)
			}
		}
		_ = s.Close()
	})
}

// A server that has the turn and nothing to commit leaves the turns, and does not delay the others. A server that is
// left alone commits as if there had been no other.
func TestATurnIsGivenOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newMemory()
		a, b := New(service, Options{}), New(service, Options{})
		put(t, a, "k", "1")
		get(t, b, "k")
		service.takeTurns(a.name, b.name)
		began := time.Now()
		put(t, b, "k", "2")
		put(t, a, "k", "3")
		synctest.Wait()
		if now, _ := b.loaded(t.Context()); time.Since(began) != 0 || len(now.head.turns) > 0 || now.claim != "" {
			t.Errorf("it took %s, and then %q take turns and %q claims one", time.Since(began), now.head.turns, now.claim)
		}
		idle := service.version
		time.Sleep(time.Minute)
		if service.version != idle {
			t.Errorf("idle servers wrote %d times", service.version-idle)
		}
		_, _ = a.Close(), b.Close()
	})
}

// While the copy is loaded again and everything was read for that, a commit gets its reply. That is not a loss: the
// leases stay. If the commit is lost after that, the loss is noticed.
func TestACommitWhileTheCopyIsRead(t *testing.T) {
	for name, loses := range map[string]bool{"it stays": false, "it is lost then": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := newMemory()
				s := New(service, Options{})
				put(t, s, "k", "1")
				life, before := status(t, s), service.save()
				service.before = func(*Commit) { s.readWhile(service) }
				put(t, s, "k", "2")
				if loses {
					service.restore(before)
				}
				if same := status(t, s) == life; same == loses {
					t.Errorf("the incarnation is the same: %t", same)
				}
				if want := map[bool]string{false: "2", true: "1"}[loses]; get(t, s, "k") != want {
					t.Errorf("the row is %q, want %q", get(t, s, "k"), want)
				}
				_ = s.Close()
			})
		})
	}
}

func status(t *testing.T, s *Store) (status replica.Status) {
	t.Helper()
	err := s.View(t.Context(), func(tx replica.Tx) error { status = tx.Status(); return nil })
	if err != nil {
		t.Error(err)
	}
	return status
}

// A server counts the time of a row from when it sees the row.
func TestExpiryByTheCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newMemory()
		a, b := New(service, Options{}), New(service, Options{})
		update(t, a, func(tx replica.Tx) { tx.Put("k", []byte("1"), time.Second) })
		time.Sleep(time.Second - time.Millisecond)
		c := New(service, Options{})
		for _, s := range []*Store{a, b, c} {
			if got := get(t, s, "k"); got != "1" {
				t.Error("the row went early")
			}
		}
		time.Sleep(2 * time.Millisecond)
		for _, s := range []*Store{a, b, c} {
			if got := get(t, s, "k"); got != "" {
				t.Error("the row stays")
			}
			_ = s.Close()
		}
	})
}

// Rows whose time has passed are removed even if nobody asks for them, and with them the entries of the log. Live
// rows are copied to new entries. After that nothing is written.
func TestWhatHasEndedIsSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newMemory()
		a, b := New(service, Options{}), New(service, Options{})
		update(t, a, func(tx replica.Tx) { tx.Put("lives", []byte("1"), time.Hour) })
		for i := range 1000 {
			update(t, a, func(tx replica.Tx) { tx.Put(strconv.Itoa(i), nil, time.Second) })
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, s := range []*Store{a, b} {
			if n := s.mirror.log.Rows(); n != 1 {
				t.Errorf("%d rows stay", n)
			}
		}
		if n := len(service.entries); n > 300 {
			t.Errorf("%d entries stay in the log", n)
		}
		idle := service.version
		time.Sleep(time.Minute)
		synctest.Wait()
		if service.version != idle {
			t.Errorf("%d commits though nothing had ended", service.version-idle)
		}
		c := New(service, Options{})
		if get(t, c, "lives") != "1" || get(t, c, "7") != "" {
			t.Error("another server does not see what is left")
		}
		_, _, _ = a.Close(), b.Close(), c.Close()
	})
}

// A row that had ended for a transaction that wrote has ended for all later ones, also on a server that saw the row
// later. Otherwise a lease could be extended there after its release had got its reply here.
func TestAnEndIsTheSameForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newMemory()
		late := &member{memory: service, until: time.Now().Add(30 * time.Millisecond)}
		a, b := New(service, Options{}), New(late, Options{})
		synctest.Wait()
		update(t, a, func(tx replica.Tx) { tx.Put("lock", []byte("1"), time.Second) })
		time.Sleep(time.Second + 10*time.Millisecond)
		if get(t, b, "lock") != "1" {
			t.Error("the row went early")
		}
		update(t, a, func(tx replica.Tx) {
			if raw, _ := tx.Get("lock"); raw != nil {
				t.Error("the row stays")
			}
			tx.Put("counter", []byte("2"), time.Hour)
		})
		if get(t, b, "counter") != "2" || get(t, b, "lock") != "" {
			t.Error("the row is there again")
		}
		_, _ = a.Close(), b.Close()
	})
}

// A transaction that is too large is refused, and a node then halves its batch.
func TestTooLarge(t *testing.T) {
	service := newMemory()
	s := open(t, service)
	put(t, s, "k", "1")
	service.limit = 4
	err := s.Update(t.Context(), func(tx replica.Tx) error {
		for i := range 5 {
			tx.Put(strconv.Itoa(i), nil, 0)
		}
		return nil
	})
	if !errors.Is(err, replica.ErrTooLarge) {
		t.Errorf("the error is %v", err)
	}
	n, err := replica.New(t.Context(), "memory", s, replica.Options{Bootstrap: true})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.RaiseMaxTTL(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	seen, err := n.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	replies := make(chan node.Reply, 20)
	for i := range cap(replies) {
		n.Submit(&node.Op{
			Kind: node.OpAcquire, Resource: strconv.Itoa(i), Owner: "o", TTL: time.Second, Epoch: seen.Epoch,
		}, i, sink(replies))
	}
	for range cap(replies) {
		if reply := <-replies; reply.Err != nil || reply.Outcome != node.Granted {
			t.Errorf("%+v", reply)
		}
	}
}

type sink chan node.Reply

func (s sink) Deliver(_ int, r node.Reply) { s <- r }

// If the service does not delete many rows in time, it is asked for fewer, until all are removed.
func TestASweepOnASlowService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rows = 3000
		service := newMemory()
		s := New(service, Options{})
		defer func() { _ = s.Close() }()
		for from := 0; from < rows; from += 500 {
			update(t, s, func(tx replica.Tx) {
				for i := range 500 {
					tx.Put(fmt.Sprint("row/", from+i), []byte("x"), time.Millisecond)
				}
			})
		}
		service.mu.Lock()
		service.slow = 100
		service.mu.Unlock()
		time.Sleep(10 * time.Minute)
		s.mirror.mu.RLock()
		left := s.mirror.log.Rows()
		s.mirror.mu.RUnlock()
		if left > 0 {
			t.Errorf("%d rows are left", left)
		}
	})
}

// mirrorOf returns a copy of a log with n entries, whose head has the version 10.
func mirrorOf(t *testing.T, entries int64) (*Mirror, head) {
	t.Helper()
	m := newMirror(func(*head) {})
	h := head{life: "life", first: 1, last: entries}
	snap := &Snapshot{Version: 10, HeadVersion: 10}
	for n := range entries {
		one := transaction{commit: fmt.Sprint("c", n+1), previous: h.entry}
		h.entry, h.commit = one.commit, one.commit
		snap.Log = append(snap.Log, Entry{Number: n + 1, Value: one.encode()})
	}
	snap.Head = h.encode()
	if _, err := m.Load(func() (*Snapshot, error) { return snap, nil }); err != nil || m.state.ailing() {
		t.Fatal(err, m.state)
	}
	return m, h
}

// The reply to a commit may come before the news of a claim that was made earlier. The claim is still there
// afterwards. A claim that the commit has used does not come back.
func TestClaimsThatComeLate(t *testing.T) {
	m, h := mirrorOf(t, 1)
	claim := func(version int64, server string) string {
		if err := m.Apply(&Change{Version: version, Claim: &server}); err != nil {
			t.Error(err)
		}
		return m.state.claim
	}
	commit := func(version int64, taken string) {
		next := h
		next.commit = fmt.Sprint("head", version)
		m.committed(version, &Commit{Former: m.state.rawHead, Head: next.encode(), Claim: taken}, next, nil, nil)
	}
	commit(12, "")
	if got := claim(11, "a"); got != "a" {
		t.Errorf("the claim before a commit is %q, want a", got)
	}
	commit(13, "a")
	if got := claim(11, "a"); got != "" {
		t.Errorf("the claim that was taken is %q", got)
	}
	if got := claim(14, "b"); got != "b" || m.state.version != 13 {
		t.Errorf("the next claim is %q, want b; the copy is of %d, want 13", got, m.state.version)
	}
}

// The data were restored, and other servers have continued from there. So the log is not the continuation of the one
// that was read, although its versions continue. That is noticed.
func TestABranchOfTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		entry, previous string
		last            int64
		wants           error
	}{
		"the next entry":                        {"c3", "c2", 3, nil},
		"another head":                          {"c2", "", 2, nil},
		"a head of another entry":               {"x2", "", 2, errBranch},
		"an earlier head":                       {"c1", "", 1, errBranch},
		"an entry after another one":            {"x3", "x2", 3, errBranch},
		"an entry in the place of one that was": {"x2", "c1", 2, errBranch},
		"a log that has begun again":            {"", "", 2, nil},
	} {
		m, h := mirrorOf(t, 2)
		h.commit, h.entry, h.last = "next", c.entry, c.last
		change := &Change{Version: 20}
		if c.previous != "" {
			h.commit = c.entry
			change.Entry = &Entry{Number: c.last, Value: (&transaction{commit: c.entry, previous: c.previous}).encode()}
		}
		if c.entry == "" {
			h.life, h.first = "another", 3
		}
		raw := h.encode()
		change.Head = &raw
		if err := m.Apply(change); !errors.Is(err, c.wants) {
			t.Errorf("%s: %v, want %v", name, err, c.wants)
		}
	}
	m, h := mirrorOf(t, 2)
	for name, log := range map[string][]transaction{
		"its end is of another":     {{commit: "c1"}, {commit: "x2", previous: "c1"}},
		"its middle is of another":  {{commit: "x1"}, {commit: "c2", previous: "c1"}},
		"its last entry is missing": {{commit: "c1"}},
	} {
		snap := &Snapshot{Version: 20, HeadVersion: 20, Head: h.encode()}
		for i := range log {
			snap.Log = append(snap.Log, Entry{Number: int64(i + 1), Value: log[i].encode()})
		}
		if _, err := m.Load(func() (*Snapshot, error) { return snap, nil }); err != nil || !m.state.gap {
			t.Errorf("%s: it is taken for whole (%v)", name, err)
		}
	}
}
