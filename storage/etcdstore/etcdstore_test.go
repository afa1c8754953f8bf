package etcdstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"etcd://a:1,b:2,c/locks":         "a:1,b:2,c:2379/locks/ user= password= tls=false",
		"etcd://u:p%40%3A@a:1":           "a:1/fencelock/ user=u password=p@: tls=false",
		"etcds://[::1]:1,[::2]/x/y/":     "[::1]:1,[::2]:2379/x/y/ user= password= tls=true",
		"etcd://a:1?ca=/x":               "write etcds://",
		"etcds://a:1?tls=1":              `the option "tls"`,
		"etcds://a:1?ca=/does/not/exist": "no such file",
		"etcds://a:1?cert=/x":            "go together",
		"etcd://":                        "is not valid",
		"etcd://a:1,,b/x":                "is not valid",
		"etcd://hunter2%zz@a:1":          "is not valid",
		"http://a:1":                     "is not valid",
	} {
		var got string
		if target, err := parse(raw); err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprintf("%s user=%s password=%s tls=%t", target.place(), target.user, target.password, target.tls != nil)
		}
		if !strings.Contains(got, want) || strings.Contains(got, "hunter2") {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

// The clock continues for a server that starts later. After the clock's lease in etcd was revoked, no row seems older
// than it is.
func TestTheClock(t *testing.T) {
	t.Parallel()
	url := testenv.EtcdURL(t)
	a, b := openStore(t, url), openStore(t, url)
	one := &clock{conn: a.conn, key: a.target.prefix + clockName}
	two := &clock{conn: b.conn, key: one.key}
	written := one.note(t.Context())
	age := func() (age time.Duration) {
		at, err := two.now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		age, rest, ok := at.age(append(written, "rest"...))
		if !ok || string(rest) != "rest" {
			t.Errorf("%q, %t", rest, ok)
		}
		return age
	}
	began := time.Now()
	testenv.Eventually(t, 20*time.Second, func() error {
		if got := age(); got > time.Since(began)+time.Second {
			t.Fatalf("it is %s old, and was written %s ago", got, time.Since(began))
		} else if got < 2*time.Second {
			return fmt.Errorf("it is %s old", got)
		}
		return nil
	})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s until it was 2 s old", took)
	}
	if _, err := a.conn.client.Revoke(t.Context(), one.lease); err != nil {
		t.Fatal(err)
	}
	if _, err := two.now(t.Context()); !errors.Is(err, errClock) {
		t.Errorf("the clock that is gone shows a time: %v", err)
	}
	if err := two.look(t.Context()); err != nil {
		t.Error(err)
	}
	if got := age(); got != 0 {
		t.Errorf("by another clock it is %s old", got)
	}
	if lease, _, ok := (reading{}).age(one.note(t.Context())); !ok || lease != 0 {
		t.Error("a note cannot be read")
	}
}

// etcd limits the size of a request. A transaction up to that size is one request; a larger one is refused, and
// nothing is written.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.EtcdURL(t))
	put := func(rows, size int) error {
		return s.Update(t.Context(), func(tx replica.Tx) error {
			for i := range rows {
				tx.Put(fmt.Sprintf("row%05d", i), make([]byte, size), time.Hour)
			}
			return nil
		})
	}
	for _, c := range []struct {
		rows, size int
		tooLarge   bool
	}{{1, 10, false}, {50_000, 10, false}, {100, 13_500, false}, {100, 16_000, true}, {100_000, 10, true}} {
		before := headOf(t, s)
		err := put(c.rows, c.size)
		if c.tooLarge != errors.Is(err, replica.ErrTooLarge) || !c.tooLarge && err != nil {
			t.Errorf("%d rows of %d bytes: %v", c.rows, c.size, err)
		}
		if after := headOf(t, s); (after == before) != c.tooLarge {
			t.Errorf("%d rows of %d bytes: something was written: %t", c.rows, c.size, after != before)
		}
	}
}

// The log is cleaned: it stays about twice as large as the rows, and live rows stay in it.
func TestTheLogIsCleaned(t *testing.T) {
	t.Parallel()
	url := testenv.EtcdURL(t)
	s := openStore(t, url)
	putRow(t, s, "old", "1")
	const most = 6 << 20
	for i := range 100 {
		err := s.Update(t.Context(), func(tx replica.Tx) error {
			tx.Put("large", make([]byte, 400<<10), time.Hour)
			tx.Put(fmt.Sprint("kept", i), nil, time.Hour)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	resp, err := s.conn.get(t.Context(), s.target.prefix+logName, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, kv := range resp.Kvs {
		total += len(kv.Value)
	}
	if total > most {
		t.Errorf("%d entries have %d bytes", len(resp.Kvs), total)
	}
	_ = s.Close()
	s = openStore(t, url)
	if got := getRow(t, s, "old"); got != "1" {
		t.Errorf("the row is %q", got)
	}
	err = s.View(t.Context(), func(tx replica.Tx) error {
		if kept := len(tx.Range("kept", "kepu", 1000)); kept != 100 {
			t.Errorf("%d rows stay, want 100", kept)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func headOf(tb testing.TB, s *Store) string {
	tb.Helper()
	resp, err := s.conn.get(tb.Context(), s.target.prefix+headName)
	if err != nil {
		tb.Fatal(err)
	}
	return string(resp.Kvs[0].Value)
}
