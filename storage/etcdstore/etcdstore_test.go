package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

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

// Rows that end at about the same time share a lease, which never ends before them.
func TestLeasesAreShared(t *testing.T) {
	t.Parallel()
	granted := 0
	l := leases{grant: func(_ context.Context, seconds int64) (*clientv3.LeaseGrantResponse, error) {
		granted++
		return &clientv3.LeaseGrantResponse{ID: clientv3.LeaseID(granted), TTL: max(seconds, 2)}, nil
	}}
	now := time.Now()
	for i := range 100_000 {
		ttl := 10*time.Second + time.Duration(i)*100*time.Microsecond // over ten seconds
		one, err := l.find(t.Context(), now.Add(ttl), ttl)
		if late := one.ends.Sub(now.Add(ttl)); err != nil || late < 0 || late > 2*time.Second+time.Millisecond {
			t.Fatalf("the lease of a row ends %s after it: %v", late, err)
		}
	}
	if granted > 11 {
		t.Errorf("%d leases for ten seconds of ends", granted)
	}
	granted = 0
	for i := range 24 * 3600 { // a counter a second, for a day
		const ttl = 24 * time.Hour
		if _, err := l.find(t.Context(), now.Add(ttl+time.Duration(i)*time.Second), ttl); err != nil {
			t.Fatal(err)
		}
	}
	if granted > 24*3600/20 {
		t.Errorf("%d leases for the counters of a day", granted)
	}
}

// A lease that etcd does not know is granted again.
func TestALeaseThatIsGone(t *testing.T) {
	t.Parallel()
	s := openStore(t, testenv.EtcdURL(t))
	write := func(value string) error {
		return s.Update(t.Context(), func(tx replica.Tx) error { tx.Put("k", []byte(value), time.Hour); return nil })
	}
	if err := write("1"); err != nil {
		t.Fatal(err)
	}
	resp, err := s.conn.get(t.Context(), s.target.prefix+rowsName, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if _, err := s.conn.client.Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
			t.Fatal(err)
		}
	}
	if err := write("2"); err != nil {
		t.Fatal(err)
	}
	if got := getRow(t, s, "k"); got != "2" {
		t.Errorf("the row is %q", got)
	}
}

// etcd's limits of a Txn are kept: up to them it is one, above it is refused and nothing
// is written.
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
	}{
		{flatOps, 10, false}, {flatOps + 1, 10, false}, {maxOps, 10, false}, {maxOps + 1, 10, true},
		{100, 13_500, false}, {100, 16_000, true},
	} {
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

func headOf(tb testing.TB, s *Store) string {
	tb.Helper()
	resp, err := s.conn.get(tb.Context(), s.target.prefix+headName)
	if err != nil {
		tb.Fatal(err)
	}
	return string(resp.Kvs[0].Value)
}

// Two processes hear each other's messages.
func TestTopics(t *testing.T) {
	t.Parallel()
	url := testenv.EtcdURL(t)
	a, b := openStore(t, url), openStore(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var got []string
	var done sync.WaitGroup
	done.Go(func() {
		b.Hear(ctx, "topic", func(message string) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, message)
		})
	})
	testenv.Eventually(t, 20*time.Second, func() error {
		if err := a.Tell(ctx, "topic", "hello"); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if len(got) == 0 || got[0] != "hello" {
			return fmt.Errorf("heard %q", got)
		}
		return nil
	})
	cancel()
	done.Wait()
}
