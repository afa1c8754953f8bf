package zkstore

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// A server that opens no session is tried again soon. The client library's own pause of a second would be added to
// every outage.
func TestAServerIsSoonTriedAgain(t *testing.T) {
	t.Parallel()
	const tries, within = 30, 25 * time.Second // the pauses of the client alone would be 29
	z := testenv.SharedZooKeeper(t)
	way := testenv.StartProxy(t, z)
	s := openStore(t, strings.Replace(newURL(t), z, way.Addr(), 1), patient())

	refusing, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = refusing.Close() }()
	began := time.Now()
	way.Retarget(refusing.Addr().String())
	way.Reset()
	for range tries {
		conn, err := refusing.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	if took := time.Since(began); took > within {
		t.Errorf("%d tries took %s", tries, took)
	}
	way.Retarget(z)
	testenv.Eventually(t, time.Minute, s.service.session.connected)
}
