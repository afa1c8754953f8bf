package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

// increment counts in a row, and reads a range.
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

// draftOf runs fn on the rows that the store knows. If it does not know enough, it makes another transaction first.
func draftOf(t *testing.T, s *Store, fn func(replica.Tx) error) (d *draft) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() error {
		if d = s.mirror.run(fn, s.fit); !d.sure {
			return cmp.Or(s.Update(t.Context(), fn), errors.New("too little is known"))
		}
		return nil
	})
	return d
}

// A draft is committed in one round trip. It is not committed if another process has written meanwhile, if the
// server's clock cannot be the draft's, or if the data are of another incarnation.
func TestDraftsOfWhatHasChanged(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	s, other := openStore(t, url, fast()), openStore(t, url, fast())
	putRow(t, other, "other", "0")
	for name, c := range map[string]struct {
		spoil func(*draft)
		done  bool
	}{
		"nothing changed":                   {func(*draft) {}, true},
		"another process wrote":             {func(*draft) { putRow(t, other, "other", "1") }, false},
		"another process only read":         {func(*draft) { getRow(t, other, "other") }, true},
		"made ahead of the clock":           {func(d *draft) { d.now += time.Minute.Microseconds() }, false},
		"a row that was taken to be absent": {func(d *draft) { d.guess.rows["other"] = false }, false},
		"a row more in a range":             {func(d *draft) { d.guess.ranges[0].from = "n"; d.guess.ranges[0].upto = "p" }, false},
		"made long ago":                     {func(d *draft) { d.now -= (2 * time.Second).Microseconds() }, false},
		"another incarnation":               {func(d *draft) { d.status.Incarnation += "1" }, false},
		"unfit by now":                      {func(d *draft) { d.status.Unfit = "" }, false}, // fsync is off here
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

// Rows get the same ends as in a transaction of several round trips: a new row counts from the server's clock, and
// one that keeps its time keeps its end.
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
	if known, _ := s.mirror.rows.Get(seen{key: "n"}); known.row.Ends != ends() {
		t.Errorf("the mirror has it end at %d, the table at %d", known.row.Ends, ends())
	}
}

// After random transactions of two stores a mirror has the same rows as the table, and each transaction has read what
// the earlier ones left.
func TestMirrorIsTheTable(t *testing.T) {
	url := testenv.Postgres(t).OwnerURL()
	stores := []*Store{openStore(t, url, fast()), openStore(t, url, fast())}
	random := rand.New(rand.NewPCG(1, 2))
	key := func() string { return fmt.Sprintf("%c%d", 'a'+rune(random.IntN(4)), random.IntN(8)) }
	table := make(map[string]string)
	drafts := 0
	for i := range 900 {
		s := stores[0]
		if random.IntN(20) == 0 {
			s = stores[1]
		}
		if random.IntN(20) == 0 {
			s.mirror.clear() // it may lose any row
		}
		steps := make([]func(replica.Tx) string, 1+random.IntN(4))
		for j := range steps {
			a, b, n := key(), key(), 1+random.IntN(6)
			from, to := min(a, b), max(a, b)
			steps[j] = []func(replica.Tx) string{
				func(tx replica.Tx) string { tx.Put(a, fmt.Append(nil, i), 0); return "" },
				func(tx replica.Tx) string { tx.Delete(a); return "" },
				func(tx replica.Tx) string { raw, _ := tx.Get(a); return string(raw) },
				func(tx replica.Tx) string { return listed(tx.Range(from, to, n)) },
				func(tx replica.Tx) string { return listed(tx.Range(a[:1], a[:1]+"~", 100)) },
			}[random.IntN(5)]
		}
		var read []string
		fn := func(tx replica.Tx) error {
			read = nil
			for _, step := range steps {
				read = append(read, step(tx))
			}
			return nil
		}
		if s.mirror.run(fn, s.fit).sure {
			drafts++
		}
		update(t, s, fn)
		got := slices.Clone(read)
		known := newKnown()
		for key, value := range table {
			known.rows[key] = overlay.Row{Value: []byte(value), Ends: overlay.ForGood}
		}
		known.spans = []span{{from: "", upto: "\xff", keys: slices.Sorted(maps.Keys(table))}}
		model := overlay.New(model{known}, 1, replica.Status{})
		if _ = fn(model); !slices.Equal(got, read) {
			t.Fatalf("transaction %d read %q, the table has %q", i, got, read)
		}
		for key, row := range model.Writes {
			if delete(table, key); row != nil {
				table[key] = string(row.Value)
			}
		}
		compareMirror(t, stores[0], stores[1])
	}
	if drafts < 200 {
		t.Errorf("%d of 900 transactions could be run on the mirror", drafts)
	}
}

func listed(rows []replica.Row) (list string) {
	for _, row := range rows {
		list += fmt.Sprintf("%s=%s ", row.Key, row.Value)
	}
	return list
}

// model is a set of rows of which everything is known.
type model struct{ *known }

func (m model) Get(key string) (*overlay.Row, bool) {
	row, _ := m.known.Get(key)
	return row, true
}

// compareMirror compares the rows that a store knows with the table as another store reads it.
func compareMirror(t *testing.T, s, other *Store) {
	t.Helper()
	m := s.mirror
	var version int64
	if err := s.pool.QueryRow(t.Context(), `SELECT last_value + is_called::int FROM fencelock.writes`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	if m.writes != version {
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
	bytes := 0
	m.rows.Ascend(func(row seen) bool {
		bytes += row.bytes()
		if value, found := there[row.key]; row.life == m.life && (!found || value != string(row.row.Value)) {
			t.Fatalf("row %q is %q in the mirror and %q in the table", row.key, row.row.Value, value)
		}
		return true
	})
	if bytes != m.bytes {
		t.Fatalf("the rows take %d bytes, and count as %d", bytes, m.bytes)
	}
}
