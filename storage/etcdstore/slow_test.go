package etcdstore

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Rows that take longer to send than a member may not answer are read all the same: in
// smaller pages.
func TestRowsOnASlowPathAreRead(t *testing.T) {
	t.Parallel()
	const rows, bytesEach = 60, 30 << 10 // 1.8 MB, in one page
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
	slow, err := Open(t.Context(), "etcd://"+path.Addr()+"/"+prefix, Options{Timeout: time.Second, Patience: time.Minute})
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
