package etcdstore

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Sending all rows takes longer than the time for which a member may be silent. They are still read: in smaller
// pages, and for longer than Open waits for an etcd that sends nothing.
func TestRowsOnASlowPathAreRead(t *testing.T) {
	testenv.Long(t, "rows that a slow path to etcd never brings")
	t.Parallel()
	const rows, bytesEach = 200, 30 << 10 // 6 MB
	url := testenv.EtcdURL(t)
	s := openStore(t, url)
	for i := range rows {
		err := s.Update(t.Context(), func(tx replica.Tx) error {
			tx.Put(strconv.Itoa(i), bytes.Repeat([]byte("x"), bytesEach), 0)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	host, prefix, _ := strings.Cut(strings.TrimPrefix(url, "etcd://"), "/")
	path := testenv.StartProxy(t, host)
	path.Delay(30 * time.Millisecond) // for each 32 kB
	slow, err := Open(t.Context(), "etcd://"+path.Addr()+"/"+prefix, Options{Timeout: time.Second, Patience: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slow.Close() })
	testenv.Eventually(t, time.Minute, func() error {
		return slow.View(t.Context(), func(tx replica.Tx) error {
			if raw, _ := tx.Get(strconv.Itoa(rows - 1)); len(raw) != bytesEach {
				t.Errorf("the last row has %d bytes", len(raw))
			}
			return nil
		})
	})
}

// The same holds for a single entry that takes as long.
func TestALargeEntryOnASlowPathIsRead(t *testing.T) {
	testenv.Long(t, "a large entry that a slow path to etcd never brings")
	t.Parallel()
	const bytesEach = 450 << 10
	url := testenv.EtcdURL(t)
	s := openStore(t, url)
	put := func(key string) {
		t.Helper()
		err := s.Update(t.Context(), func(tx replica.Tx) error {
			tx.Put(key, bytes.Repeat([]byte("x"), bytesEach), 0)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("1")
	host, prefix, _ := strings.Cut(strings.TrimPrefix(url, "etcd://"), "/")
	path := testenv.StartProxy(t, host)
	path.Delay(60 * time.Millisecond) // for each 32 kB: 0.9 s for the entry
	slow, err := Open(t.Context(), "etcd://"+path.Addr()+"/"+prefix, Options{Timeout: time.Second, Patience: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slow.Close() })
	put("2") // and while the server runs
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, key := range []string{"1", "2"} {
		err := slow.View(ctx, func(tx replica.Tx) error {
			if raw, _ := tx.Get(key); len(raw) != bytesEach {
				t.Errorf("row %s has %d bytes", key, len(raw))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
