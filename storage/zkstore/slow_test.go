package zkstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Sending the log takes longer than the time for which a server may be silent. It is still read: fewer entries at
// once, and for longer than Open waits for a server that sends nothing.
func TestALogOnASlowPathIsRead(t *testing.T) {
	testenv.Long(t, "a log that a slow path to ZooKeeper never brings")
	t.Parallel()
	const rows, bytesEach = 200, 30 << 10 // 6 MB
	z := testenv.SharedZooKeeper(t)
	url := newURL(t)
	s := openStore(t, url, patient())
	for i := range rows {
		putRow(t, s, strconv.Itoa(i), string(bytes.Repeat([]byte("x"), bytesEach)), 0)
	}
	path := testenv.StartProxy(t, z)
	path.Delay(60 * time.Millisecond) // for each 32 kB: 11 s for all
	opts := Options{Timeout: 4 * time.Second, Patience: 9 * time.Second}
	slow := openStore(t, Scheme+path.Addr()+url[len(Scheme+z):], opts)
	for _, key := range []string{"0", strconv.Itoa(rows - 1)} {
		if value, _ := getRow(t, slow, key); len(value) != bytesEach {
			t.Errorf("row %s has %d bytes", key, len(value))
		}
	}
}

// On a slow path a large request takes longer than the time for which a server may be silent. That is no reason to
// refuse the servers.
func TestAPathTooSlowForLargeRequests(t *testing.T) {
	t.Parallel()
	z := testenv.SharedZooKeeper(t)
	path := testenv.StartProxy(t, z)
	path.Delay(40 * time.Millisecond) // for each 32 kB: 0.8 s for the largest request
	s := openStore(t, Scheme+path.Addr()+newURL(t)[len(Scheme+z):], Options{Timeout: time.Second, Patience: 20 * time.Second})
	putRow(t, s, "k", "1", 0)
}

// A single entry takes longer to send than the time for which a server may be silent. It is still read, because the
// server does send. Here it is an entry of a sweep whose reply was lost.
func TestALargeEntryOnASlowPath(t *testing.T) {
	testenv.Long(t, "a large entry that a slow path to ZooKeeper never brings")
	t.Parallel()
	const rows, keyBytes = 400, 1 << 10 // a sweep of all sends 400 kB: 0.5 s on the path
	z := testenv.SharedZooKeeper(t)
	url := newURL(t)
	filler := openStore(t, url, patient())
	update(t, filler, func(tx replica.Tx) {
		for i := range rows {
			tx.Put(strings.Repeat("k", keyBytes)+strconv.Itoa(i), []byte("x"), 10*time.Second)
		}
	})
	_ = filler.Close() // no time passes for the rows while no server runs
	path := testenv.StartProxy(t, z)
	slow := openStore(t, Scheme+path.Addr()+url[len(Scheme+z):], Options{Timeout: 600 * time.Millisecond, Patience: 30 * time.Second})
	path.Delay(40 * time.Millisecond) // for each 32 kB
	testenv.Eventually(t, 2*time.Minute, func() error {
		left, err := countRows(t.Context(), slow)
		if left > 0 {
			err = fmt.Errorf("%d rows are left", left)
		}
		return err
	})
}

// refusing is a proxy that closes the connection on a request of more than n bytes, as servers with a small
// jute.maxbuffer do.
func refusing(t *testing.T, server string, most *atomic.Uint32) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); running.Wait() })
	pass := func(client, server net.Conn) error {
		for {
			var size [4]byte
			if _, err := io.ReadFull(client, size[:]); err != nil {
				return err
			}
			n := binary.BigEndian.Uint32(size[:])
			if n > most.Load() {
				return io.ErrShortBuffer
			}
			if _, err := server.Write(size[:]); err != nil {
				return err
			}
			if _, err := io.CopyN(server, client, int64(n)); err != nil {
				return err
			}
		}
	}
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() {
				_ = pass(client, server)
				_, _ = client.Close(), server.Close()
			})
			running.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
		}
	})
	return listener.Addr().String()
}

// Rows that the servers refuse to delete in one request are deleted in several.
func TestASweepOfRefusedRequests(t *testing.T) {
	testenv.Long(t, "a sweep of ZooKeeper that refused requests stop")
	t.Parallel()
	const rows, keyBytes = 400, 1 << 10 // a sweep of all sends 400 kB
	z := testenv.SharedZooKeeper(t)
	url := newURL(t)
	filler := openStore(t, url, patient())
	update(t, filler, func(tx replica.Tx) {
		for i := range rows {
			tx.Put(strings.Repeat("k", keyBytes)+strconv.Itoa(i), []byte("x"), 10*time.Second)
		}
	})
	var most atomic.Uint32
	most.Store(1 << 20)
	s := openStore(t, Scheme+refusing(t, z, &most)+url[len(Scheme+z):], Options{
		Timeout: time.Second, Patience: time.Minute,
	})
	most.Store(100 << 10)
	_ = filler.Close()
	testenv.Eventually(t, time.Minute, func() error {
		left, err := countRows(t.Context(), s)
		if left > 0 {
			err = fmt.Errorf("%d rows are left", left)
		}
		return err
	})
}
