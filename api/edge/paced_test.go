package edge_test

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/edge"
)

// frames is a connection over which pings without an end come, and a listener that accepts it.
type frames struct {
	net.Conn
	net.Listener
	preface *strings.Reader
}

func (f frames) Accept() (net.Conn, error) { return f, nil }
func (frames) Addr() net.Addr              { return nil }
func (frames) Close() error                { return nil }
func (f frames) Read(p []byte) (int, error) {
	n, _ := f.preface.Read(p)
	return max(n, len(p)), nil // zeros are frames, too
}

// A ping has seventeen bytes, and an empty frame nine: what a stranger may send over HTTP/2
// decides how much of the processor they take.
func TestAStrangersFramesComeSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := edge.NewListener(frames{preface: strings.NewReader("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}, edge.ListenerOptions{Logger: slog.New(slog.DiscardHandler)})
		defer func() { _ = l.Close() }()
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		const long, first, most = 10 * time.Second, 4 << 10, 40 << 10
		begun, bytes := time.Now(), 0
		for time.Since(begun) < long {
			n, err := conn.Read(make([]byte, 4<<10)) // as net/http reads
			if err != nil {
				t.Fatal(err)
			}
			if bytes += n; bytes == first && time.Since(begun) > 0 {
				t.Errorf("a usual header takes %s", time.Since(begun))
			}
			if bytes > most {
				t.Fatalf("%d bytes in %s", bytes, time.Since(begun))
			}
		}
	})
}
