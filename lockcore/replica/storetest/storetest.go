// Package storetest is the suite that every replica.Store passes.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Harness is an empty store, and the means of a test to change it.
type Harness struct {
	Store replica.Store
	// Advance moves the store's clock. If it is nil, the clock is real, and the suite waits for it.
	Advance func(time.Duration)
	// Reopen is a restart that loses nothing, or nil. It returns the store to use from then on.
	Reopen func() replica.Store
	// Slack is how much later a row may end after a restart; 0 means exactly on time.
	Slack time.Duration
	// Lose is a restart that loses committed state, or nil.
	Lose func()
	// Beside opens the same data for another server; nil if only one server can open them.
	Beside func() replica.Store
	// Message is the length of the longest message that the suite sends between servers; a million bytes if 0.
	Message int
	// Noise sends something on the way of a topic's messages that no server sends; nil if nobody can.
	Noise func(topic string)
}

// patience is how long the suite waits for a real clock and for notifications.
const patience = 10 * time.Second

// Run tests the stores that open returns, each a new one, beside one another.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	for name, test := range map[string]func(*suite){
		"a row is what was put last":             (*suite).rows,
		"an update that fails is undone":         (*suite).undone,
		"a row goes with its time to live":       (*suite).expiry,
		"a row's time to live begins again":      (*suite).renewal,
		"a range is ordered, bounded, limited":   (*suite).ranges,
		"a range leaves out what has expired":    (*suite).expiredRange,
		"a purge leaves nothing":                 (*suite).purge,
		"a notification follows the commit":      (*suite).notification,
		"a failed update notifies no listener":   (*suite).noNotification,
		"a notification reaches another server":  (*suite).notifiesOther,
		"messages reach another server whole":    (*suite).messages,
		"updates are serialised":                 (*suite).serialised,
		"reads are serialised with the writes":   (*suite).writeSkew,
		"a transaction may be large":             (*suite).large,
		"what was put is not the caller's":       (*suite).copies,
		"rows survive a restart":                 (*suite).durable,
		"a lost commit is another incarnation":   (*suite).incarnation,
		"the clock stands still in transactions": (*suite).clock,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&suite{T: t, Harness: open(t)})
		})
	}
}

type suite struct {
	*testing.T
	Harness
}

func (s *suite) update(fn func(replica.Tx)) {
	s.Helper()
	s.must(s.Store.Update(s.Context(), func(tx replica.Tx) error {
		fn(tx)
		return nil
	}))
}

func (s *suite) view(fn func(replica.Tx)) {
	s.Helper()
	s.must(s.Store.View(s.Context(), func(tx replica.Tx) error {
		fn(tx)
		return nil
	}))
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// get reads a row in a transaction of its own.
func (s *suite) get(key string) (value string, left time.Duration, found bool) {
	s.Helper()
	s.view(func(tx replica.Tx) {
		raw, l := tx.Get(key)
		value, left, found = string(raw), l, raw != nil
	})
	return value, left, found
}

func (s *suite) want(key, value string) {
	s.Helper()
	if got, _, found := s.get(key); !found || got != value {
		s.Errorf("row %q is %q (found: %t), want %q", key, got, found, value)
	}
}

func (s *suite) wantNone(key string) {
	s.Helper()
	if got, _, found := s.get(key); found {
		s.Errorf("row %q is %q, want none", key, got)
	}
}

func (s *suite) put(key, value string, ttl time.Duration) {
	s.Helper()
	s.update(func(tx replica.Tx) { tx.Put(key, []byte(value), ttl) })
}

// until waits for the condition, at most for patience.
func (s *suite) until(what string, holds func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			s.Fatalf("after %s still not: %s", patience, what)
		}
		select {
		case <-s.Context().Done():
			s.Fatal(s.Context().Err())
		case <-time.After(time.Millisecond):
		}
	}
}

func (s *suite) rows() {
	s.wantNone("a")
	s.put("a", "1", 0)
	s.put("empty", "", time.Hour)
	s.put("a\x00\xff", "binary", 0)
	s.want("a", "1")
	s.want("empty", "")
	s.want("a\x00\xff", "binary")
	s.update(func(tx replica.Tx) {
		tx.Put("a", []byte("2"), 0)
		if raw, _ := tx.Get("a"); string(raw) != "2" {
			s.Errorf("a transaction reads %q of what it put itself", raw)
		}
		tx.Delete("empty")
		if raw, _ := tx.Get("empty"); raw != nil {
			s.Errorf("a transaction reads %q of what it deleted itself", raw)
		}
		tx.Delete("never there")
	})
	s.want("a", "2")
	s.wantNone("empty")
}

func (s *suite) undone() {
	s.put("kept", "before", 0)
	s.put("purged only", "before", time.Hour)
	s.failedUpdate()
	s.want("kept", "before")
	s.want("purged only", "before")
	s.wantNone("new")
}

// failedUpdate changes rows in every way, and fails.
func (s *suite) failedUpdate() {
	s.Helper()
	failure := errors.New("on purpose")
	err := s.Store.Update(s.Context(), func(tx replica.Tx) error {
		tx.Put("kept", []byte("after"), 0)
		tx.Put("new", []byte("after"), 0)
		tx.Delete("kept")
		tx.Purge()
		tx.Put("new", []byte("after"), 0)
		return failure
	})
	if !errors.Is(err, failure) {
		s.Errorf("the error is %v, want the transaction's own", err)
	}
}

// ttl returns a TTL, short if the suite has to wait for it.
func (s *suite) ttl() time.Duration {
	if s.Advance != nil {
		return time.Hour
	}
	return 300 * time.Millisecond
}

func (s *suite) expiry() {
	ttl := s.ttl()
	began := time.Now()
	s.put("for good", "1", 0)
	s.put("for an hour", "1", time.Hour)
	if _, left, found := s.get("for an hour"); !found || left <= 0 || left > time.Hour {
		s.Errorf("%s are left of an hour (found: %t)", left, found)
	}
	s.put("for a while", "1", ttl)
	if s.Advance == nil {
		s.until("the row is deleted", func() bool { _, _, found := s.get("for a while"); return !found })
		if took := time.Since(began); took < ttl {
			s.Errorf("the row expired after %s, before its %s", took, ttl)
		}
	} else {
		s.Advance(ttl - time.Millisecond)
		s.want("for a while", "1")
		s.Advance(time.Millisecond)
		s.wantNone("for a while")
	}
	s.want("for good", "1")
	s.put("for a while", "2", 0)
	s.want("for a while", "2")
}

func (s *suite) renewal() {
	const long = 24 * time.Hour
	s.put("a", "1", s.ttl())
	s.put("a", "1", long)
	s.put("b", "1", s.ttl())
	s.pass(s.ttl(), "b")
	if _, left, found := s.get("a"); !found || left < long/2 || left > long {
		s.Errorf("%s are left (found: %t), want nearly %s", left, found, long)
	}
}

// pass lets a TTL pass; row is a row that ends with it.
func (s *suite) pass(ttl time.Duration, row string) {
	s.Helper()
	if s.Advance != nil {
		s.Advance(ttl)
	}
	s.until("the row "+row+" is deleted", func() bool { _, _, found := s.get(row); return !found })
}

func (s *suite) keys(from, to string, limit int) (keys []string) {
	s.Helper()
	s.view(func(tx replica.Tx) {
		keys = nil
		for _, row := range tx.Range(from, to, limit) {
			keys = append(keys, row.Key)
			if string(row.Value) != "v"+row.Key {
				s.Errorf("row %q has the value %q in a range", row.Key, row.Value)
			}
		}
	})
	return keys
}

func (s *suite) wantKeys(got []string, want ...string) {
	s.Helper()
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		s.Errorf("the range has %q, want %q", got, want)
	}
}

func (s *suite) ranges() {
	s.update(func(tx replica.Tx) {
		for _, key := range []string{"b\xff", "b", "a", "c", "b\x00", "b1", "bä"} {
			tx.Put(key, []byte("v"+key), time.Hour)
		}
	})
	s.wantKeys(s.keys("b", "c", 10), "b", "b\x00", "b1", "bä", "b\xff")
	s.wantKeys(s.keys("b\x00", "b1", 10), "b\x00")
	s.wantKeys(s.keys("a", "d", 2), "a", "b")
	s.wantKeys(s.keys("b\xff", "d", math.MaxInt), "b\xff", "c")
	s.wantKeys(s.keys("d", "e", 2))
	var rows []replica.Row
	s.update(func(tx replica.Tx) {
		tx.Delete("b")
		tx.Put("b0", []byte("vb0"), 0)
		rows = tx.Range("b", "c", 2)
	})
	if len(rows) != 2 || rows[0].Key != "b\x00" || rows[1].Key != "b0" {
		s.Errorf("a transaction's range does not have what it wrote itself: %v", rows)
	}
}

func (s *suite) expiredRange() {
	s.put("a", "va", s.ttl())
	s.put("b", "vb", time.Hour*24)
	s.pass(s.ttl(), "a")
	s.wantKeys(s.keys("a", "c", 1), "b")
}

func (s *suite) purge() {
	s.put("a", "1", 0)
	s.put("b", "1", time.Hour)
	s.update(func(tx replica.Tx) {
		tx.Put("c", []byte("1"), 0)
		tx.Purge()
		tx.Put("d", []byte("1"), 0)
	})
	for _, key := range []string{"a", "b", "c"} {
		s.wantNone(key)
	}
	s.want("d", "1")
}

// wakes keeps the notifications.
type wakes struct {
	mu         sync.Mutex
	turns      []string
	subscribed int
}

func (w *wakes) Wake(resource string, ticket node.Ticket) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns = append(w.turns, resource+" "+ticket.ID+" "+ticket.Server+" "+ticket.Holder)
}

func (w *wakes) Subscribed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscribed++
}

func (w *wakes) heard() ([]string, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.turns, w.subscribed
}

// listen subscribes for a server until the test ends.
func (s *suite) listen(server string) *wakes {
	s.Helper()
	w := &wakes{}
	ctx, cancel := context.WithCancel(s.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Store.Listen(ctx, server, w) })
	s.Cleanup(func() {
		cancel()
		done.Wait()
	})
	s.until("subscribed", func() bool { _, n := w.heard(); return n > 0 })
	return w
}

func (s *suite) notify(resource, server string) {
	s.Helper()
	s.update(func(tx replica.Tx) {
		tx.Put("note", []byte(resource), 0)
		tx.Notify(resource, node.Ticket{ID: "t1", Server: server, Holder: "who it is"})
	})
}

func (s *suite) notification() {
	mine, others := s.listen("mine"), s.listen("others")
	s.notify("a b\nc", "mine")
	s.notify("last", "others")
	s.until("both are notified", func() bool {
		a, _ := mine.heard()
		b, _ := others.heard()
		return len(a) > 0 && len(b) > 0
	})
	if turns, _ := mine.heard(); len(turns) != 1 || turns[0] != "a b\nc t1 mine who it is" {
		s.Errorf("heard %q", turns)
	}
}

func (s *suite) noNotification() {
	w := s.listen("mine")
	_ = s.Store.Update(s.Context(), func(tx replica.Tx) error {
		tx.Notify("never", node.Ticket{ID: "t1", Server: "mine"})
		return errors.New("on purpose")
	})
	s.notify("after it", "mine")
	s.until("notified", func() bool { turns, _ := w.heard(); return len(turns) > 0 })
	if turns, _ := w.heard(); turns[0] != "after it t1 mine who it is" {
		s.Errorf("heard %q first", turns[0])
	}
}

// large: a thousand small rows fit. Of two megabytes, either all rows are stored or none.
func (s *suite) large() {
	const rows = 1000
	if err := s.putMany(rows, 400); err != nil {
		s.Error(err)
	}
	s.wantMany(rows, 400)
	switch err := s.putMany(rows, 2000); {
	case err == nil:
		s.wantMany(rows, 2000)
	case errors.Is(err, replica.ErrTooLarge):
		s.wantMany(rows, 400)
	default:
		s.Error(err)
	}
}

func (s *suite) putMany(rows, size int) error {
	return s.Store.Update(s.Context(), func(tx replica.Tx) error {
		for i := range rows {
			tx.Put(fmt.Sprintf("row%04d", i), bytes.Repeat([]byte("x"), size), time.Hour)
		}
		return nil
	})
}

func (s *suite) wantMany(rows, size int) {
	s.Helper()
	value, n := bytes.Repeat([]byte("x"), size), 0
	s.view(func(tx replica.Tx) {
		n = 0
		for _, row := range tx.Range("row", "rox", 2*rows) {
			if bytes.Equal(row.Value, value) {
				n++
			}
		}
	})
	if n != rows {
		s.Errorf("%d rows of %d bytes, want %d", n, size, rows)
	}
}

func (s *suite) copies() {
	s.update(func(tx replica.Tx) {
		value := []byte("before")
		tx.Put("a", value, 0)
		copy(value, "change")
	})
	s.want("a", "before")
}

func (s *suite) durable() {
	if s.Reopen == nil {
		return // a store without restarts loses nothing by one
	}
	const long = 24 * time.Hour
	s.put("purged", "first", 0)
	s.update(func(tx replica.Tx) {
		tx.Purge()
		for _, key := range []string{"bounded", "deleted", "kept"} {
			tx.Put(key, []byte("first"), 0)
		}
		tx.Put("for good", []byte("first"), long)
		tx.Put("renewed", []byte("first"), long/2)
		tx.Put("deleted early", []byte("first"), long)
	})
	s.reopen("bounded", "deleted", "deleted early", "for good", "kept", "renewed")
	s.update(func(tx replica.Tx) {
		tx.Put("bounded", nil, long)
		tx.Put("for good", []byte("second"), 0)
		tx.Put("renewed", []byte("second"), long)
		tx.Put("put again", []byte("first"), 0)
		tx.Delete("put again")
		tx.Put("put again", []byte("second"), 0)
		tx.Delete("deleted early")
	})
	s.update(func(tx replica.Tx) { tx.Delete("deleted") })
	s.put("expired", "first", s.ttl())
	s.pass(s.ttl(), "expired")
	s.update(func(tx replica.Tx) { // a row that a writing transaction has found ended never appears again
		if value, left := tx.Get("expired"); value != nil {
			s.Errorf("a row that had expired is there again, for %s", left)
		}
		tx.Put("put again", []byte("second"), 0)
	})
	s.failedUpdate()
	for range 2 { // the row must also be in the second process after a write
		s.reopen("bounded", "for good", "kept", "put again", "renewed")
	}
	s.want("for good", "second")
	s.update(func(tx replica.Tx) { tx.Purge() })
	s.reopen()
}

// reopen restarts the store. Before and after, it must have exactly these rows (keys in order), with the same
// values, times to live and incarnation.
func (s *suite) reopen(keys ...string) {
	s.Helper()
	before, status := s.all(), s.status()
	s.Store = s.Reopen()
	after := s.all()
	for s.Slack > 0 && len(after) > len(keys) && passes(s.Context()) { // a row that had expired may appear again
		after = s.all()
	}
	if now := s.status(); now != status {
		s.Errorf("a restart that lost nothing makes %+v of %+v", now, status)
	}
	if len(before) != len(keys) || len(after) != len(keys) {
		s.Fatalf("rows before the restart: %q\nafter it: %q\nwant the keys %q", before, after, keys)
	}
	for i, key := range keys {
		b, a := before[i], after[i]
		passed := b.Left - a.Left
		if b.Key != key || a.Key != key || !bytes.Equal(b.Value, a.Value) ||
			(b.Left == 0) != (a.Left == 0) || passed < -s.Slack-time.Millisecond || passed > patience {
			s.Errorf("want the row %q, before the restart: %q, after it: %q", key, b, a)
		}
	}
}

// passes lets a moment pass; it returns false when the test ends.
func passes(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Millisecond):
		return true
	}
}

// all reads every row.
func (s *suite) all() (rows []replica.Row) {
	s.Helper()
	s.view(func(tx replica.Tx) {
		rows = tx.Range("\x00", "\xff", math.MaxInt)
		for i := range rows {
			rows[i].Value = bytes.Clone(rows[i].Value)
		}
	})
	return rows
}

func (s *suite) status() (status replica.Status) {
	s.Helper()
	s.view(func(tx replica.Tx) { status = tx.Status() })
	return status
}

func (s *suite) incarnation() {
	s.put("a", "1", 0)
	before := s.status()
	if before.Incarnation == "" || before.Unfit != "" || s.status() != before {
		s.Errorf("status %+v, then %+v", before, s.status())
	}
	if s.Lose == nil {
		return // a store that cannot lose a commit has one incarnation
	}
	s.Lose()
	if now := s.status(); now.Incarnation == before.Incarnation {
		s.Errorf("the incarnation is still %q", now.Incarnation)
	}
}

func (s *suite) clock() {
	s.update(func(tx replica.Tx) {
		now := tx.Now()
		if now.Before(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)) {
			s.Errorf("the clock shows %s", now)
		}
		if again := tx.Now(); !again.Equal(now) {
			s.Errorf("the clock advanced by %s in one transaction", again.Sub(now))
		}
	})
}
