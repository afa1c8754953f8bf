package zkstore

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// A log that takes longer to send than a server may not answer is read all the same:
// fewer entries at once.
func TestALogOnASlowPathIsRead(t *testing.T) {
	t.Parallel()
	const rows, bytesEach = 64, 30 << 10 // 2 MB
	z := testenv.SharedZooKeeper(t)
	url := newURL(t)
	s := openStore(t, url, patient())
	for i := range rows {
		putRow(t, s, strconv.Itoa(i), string(bytes.Repeat([]byte("x"), bytesEach)), 0)
	}
	path := testenv.StartProxy(t, z)
	path.Delay(30 * time.Millisecond) // for each 32 kB
	opts := Options{Timeout: 2 * time.Second, Patience: time.Minute}
	slow := openStore(t, Scheme+path.Addr()+url[len(Scheme+z):], opts)
	for _, key := range []string{"0", strconv.Itoa(rows - 1)} {
		if value, _ := getRow(t, slow, key); len(value) != bytesEach {
			t.Errorf("row %s has %d bytes", key, len(value))
		}
	}
}
