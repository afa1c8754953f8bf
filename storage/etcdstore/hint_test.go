package etcdstore

import (
	"context"
	"net"
	"strings"
	"testing"
)

// An etcd without TLS hangs up on a client that uses TLS, with data unread. As often as not the reset overtakes its
// response, so the client sees only the reset.
func TestHintOfAReset(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1)) // the rest stays unread, so closing resets
			_ = conn.Close()
		}
	}()
	target, err := parse("etcds://" + listener.Addr().String() + "/p")
	if err != nil {
		t.Fatal(err)
	}
	if said := hinted(context.DeadlineExceeded, target).Error(); !strings.Contains(said, "etcd:// for one without") {
		t.Errorf("%q", said)
	}
}
