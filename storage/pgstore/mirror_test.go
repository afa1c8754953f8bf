package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// increment counts in a row, and looks at a range.
func increment(tx replica.Tx) error {
	raw, _ := tx.Get("n")
	n := 0
	_, _ = fmt.Sscan(string(raw), &n)
	tx.Range("a", "b", 1)
	tx.Put("n", fmt.Append(nil, n+1), time.Hour)
	return nil
}

func update(tb testing.TB, s *Store, fn func(replica.Tx) error) {
	tb.Helper()
	if err := s.Update(tb.Context(), fn); err != nil {
		tb.Fatal(err)
	}
}

// draftOf runs fn on what the store knows; it may take another transaction until it
// knows enough.
func draftOf(t *testing.T, s *Store, fn func(replica.Tx) error) (d *draft) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() error {
		if d = s.mirror.run(fn, s.fit); d == nil {
			return cmp.Or(s.Update(t.Context(), fn), errors.New("too little is known"))
		}
		return nil
	})
	return d
}

// A draft is committed in one round trip, and not at all once another process has
// written, the clock of the server cannot be that of the draft, or the data are others.
func TestDraftsOfWhatHasChanged(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	s, other := openStore(t, url, fast()), openStore(t, url, fast())
	for name, c := range map[string]struct {
		spoil func(*draft)
		done  bool
	}{
		"nothing changed":           {func(*draft) {}, true},
		"another process wrote":     {func(*draft) { putRow(t, other, "other", "1") }, false},
		"another process only read": {func(*draft) { getRow(t, other, "other") }, true},
		"made ahead of the clock":   {func(d *draft) { d.now += time.Minute.Microseconds() }, false},
		"made long ago":             {func(d *draft) { d.now -= (2 * time.Second).Microseconds() }, false},
		"another incarnation":       {func(d *draft) { d.status.Incarnation += "1" }, false},
		"unfit by now":              {func(d *draft) { d.status.Unfit = "" }, false}, // fsync is off here
	} {
		t.Run(name, func(t *testing.T) {
			d := draftOf(t, s, increment)
			before := getRow(t, other, "n")
			c.spoil(d)
			done, err := s.writeIf(t.Context(), d)
			if err != nil || done != c.done {
				t.Errorf("committed: %t, %v; want %t", done, err, c.done)
			}
			if after := getRow(t, other, "n"); (after != before) != c.done {
				t.Errorf("row %q, was %q", after, before)
			}
			update(t, s, increment)
		})
	}
}

// Rows have the ends that they would have in a transaction of several round trips: a
// new one counts from the server's clock, one that keeps its time keeps its end.
func TestEndsOfDrafts(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	s := openStore(t, url, fast())
	ends := func() int64 { return query[int64](t, url, `SELECT ends FROM fencelock.rows WHERE key = 'n'`) }
	keep := func(tx replica.Tx) error {
		raw, left := tx.Get("n")
		tx.Put("n", append(slices.Clone(raw), 'x'), left)
		return nil
	}
	update(t, s, increment)
	was := ends()
	for range 3 {
		d := draftOf(t, s, keep)
		if _, left := d.Get("n"); left > time.Hour {
			t.Errorf("%s are left of an hour", left)
		}
		if done, err := s.writeIf(t.Context(), d); !done || err != nil {
			t.Fatal(done, err)
		}
		if now := ends(); now != was {
			t.Errorf("a row that was to keep its end is %s later", time.Duration(now-was)*time.Microsecond)
		}
	}
	before := query[int64](t, url, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`)
	d := draftOf(t, s, increment)
	if done, err := s.writeIf(t.Context(), d); !done || err != nil {
		t.Fatal(done, err)
	}
	after := query[int64](t, url, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`)
	hour := time.Hour.Microseconds()
	if now := ends(); now < before+hour || now > after+hour {
		t.Errorf("a new row ends between %s and %s of its time", time.Duration(now-before)*time.Microsecond, time.Duration(now-after)*time.Microsecond)
	}
	if known, _ := s.mirror.rows.Get("n"); known.Ends != ends() {
		t.Errorf("the mirror has it end at %d, the table at %d", known.Ends, ends())
	}
}

// What a mirror says after random transactions of two stores is what the table has.
func TestMirrorIsTheTable(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	stores := []*Store{openStore(t, url, fast()), openStore(t, url, fast())}
	random := rand.New(rand.NewPCG(1, 2))
	key := func() string { return fmt.Sprintf("%c%d", 'a'+rune(random.IntN(4)), random.IntN(8)) }
	drafts := 0
	for i := range 600 {
		s := stores[0]
		if random.IntN(20) == 0 {
			s = stores[1]
		}
		steps := make([]func(replica.Tx), 1+random.IntN(4))
		for j := range steps {
			a, b, n := key(), key(), 1+random.IntN(6)
			from, to := min(a, b), max(a, b)
			steps[j] = []func(replica.Tx){
				func(tx replica.Tx) { tx.Put(a, fmt.Append(nil, i), 0) },
				func(tx replica.Tx) { tx.Delete(a) },
				func(tx replica.Tx) { tx.Get(a) },
				func(tx replica.Tx) { tx.Range(from, to, n) },
				func(tx replica.Tx) { tx.Range(a[:1], a[:1]+"~", 100) },
			}[random.IntN(5)]
		}
		fn := func(tx replica.Tx) error {
			for _, step := range steps {
				step(tx)
			}
			return nil
		}
		if d := s.mirror.run(fn, s.fit); d != nil {
			drafts++
		}
		update(t, s, fn)
		compareMirror(t, stores[0], stores[1])
	}
	if drafts < 100 {
		t.Errorf("%d of 600 transactions could be run on the mirror", drafts)
	}
}

// compareMirror compares what a store knows with the table as another store reads it.
func compareMirror(t *testing.T, s, other *Store) {
	t.Helper()
	m := &s.mirror
	var version int64
	if err := s.pool.QueryRow(t.Context(), `SELECT last_value + is_called::int FROM fencelock.writes`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	if m.rows == nil || m.writes != version {
		return // it knows that it does not know, or will
	}
	there := make(map[string]string)
	err := other.View(context.WithoutCancel(t.Context()), func(tx replica.Tx) error {
		clear(there)
		for _, row := range tx.Range("\x00", "\xff", 1000) {
			there[row.Key] = string(row.Value)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for key, row := range m.rows.rows {
		if value, found := there[key]; !found || value != string(row.Value) {
			t.Fatalf("row %q is %q in the mirror and %q in the table", key, row.Value, value)
		}
	}
	for key := range m.rows.absent {
		if _, found := there[key]; found {
			t.Fatalf("row %q is in the table and not in the mirror", key)
		}
	}
	upto := ""
	for _, s := range m.rows.spans {
		if s.from < upto {
			t.Fatalf("spans overlap at %q: %+v", s.from, m.rows.spans)
		}
		upto = s.upto
		var keys []string
		for key := range there {
			if s.from <= key && key < s.upto {
				keys = append(keys, key)
			}
		}
		if slices.Sort(keys); !slices.Equal(keys, s.keys) {
			t.Fatalf("from %q up to %q the mirror has %q, the table %q", s.from, s.upto, s.keys, keys)
		}
	}
}
