package testenv

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A server keeps its address when it is killed and started again, and a shutdown lets it finish a request: the
// signal is not repeated, because a second one would end it at once.
func TestFencelockShutdownIsOrderly(t *testing.T) {
	t.Parallel()
	f := StartFencelock(t)
	addr := f.Addr()
	f.Kill()
	if f.Running() {
		t.Error("a killed server runs")
	}
	f.Restart()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"resource":"r"}`
	lines := bufio.NewReader(conn)
	said := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, want) {
			t.Fatalf("%q, %v, want %s", line, err, want)
		}
	}
	_, err = io.WriteString(conn, "POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	said("100")
	said("\r\n")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Shutdown()
	}()
	Eventually(t, later, func() error {
		if !strings.Contains(f.Logs(), `"msg":"stopping`) {
			return errors.New("it does not stop")
		}
		return nil
	})
	<-time.After(2 * signalEvery) // when another server would have got the signal again
	if _, err := io.WriteString(conn, body); err != nil {
		t.Fatal(err)
	}
	said("201")
	_ = conn.Close()
	<-ended
	if code := f.Exit(later); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
