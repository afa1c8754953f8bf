package api_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
)

// watched is the client's side of a connection, which notices when the server closes it.
type watched struct {
	net.Conn
	once *sync.Once
	gone chan struct{}
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.once.Do(func() { close(w.gone) })
	}
	return n, err
}

// full is a server that has few connections, one for each of its clients.
type full struct {
	t       *testing.T
	over    string // http, https or h2
	address string
	entered chan struct{} // a request runs
	finish  chan struct{}
	states  sync.Map // of http.ConnState, as the server knows it, by the client's address
}

type client struct {
	full *full
	http *http.Client
	from string // its address
	conn chan watched
	gone chan struct{}
}

func newFull(t *testing.T, over string, most int) *full {
	t.Helper()
	f := &full{t: t, over: over, entered: make(chan struct{}), finish: make(chan struct{})}
	locks := &fake{t: t, list: func(string, int, string) (lockcore.LockPage, error) {
		f.entered <- struct{}{}
		<-f.finish
		return lockcore.LockPage{}, nil
	}}
	s := newService(t, locks, withAccess(t, line("known", "read=*")))
	server := httptest.NewUnstartedServer(s.handler)
	opts := edge.ListenerOptions{Handshake: 10 * time.Second, Max: most, Name: "api", Logger: slog.New(slog.DiscardHandler)}
	if over != "http" {
		certified := httptest.NewTLSServer(nil)
		opts.TLS = &tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
		certified.Close()
	}
	server.Listener = edge.NewListener(server.Listener, opts)
	server.Config.ConnContext = edge.ConnContext
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		edge.ConnState(conn, state)
		f.states.Store(conn.RemoteAddr().String(), state)
	}
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetHTTP2(true)
	server.Config.Handler = s.handler
	f.address = server.Listener.Addr().String()
	go func() { _ = server.Config.Serve(server.Listener) }()
	t.Cleanup(func() { _ = server.Config.Close() })
	return f
}

// connect opens a connection. Requests of the client use it while it lasts.
func (f *full) connect() *client {
	f.t.Helper()
	tcp, err := net.Dial("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = tcp.Close() })
	c := &client{full: f, from: tcp.LocalAddr().String(), conn: make(chan watched, 1), gone: make(chan struct{})}
	c.conn <- watched{Conn: tcp, once: new(sync.Once), gone: c.gone}
	c.http = &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: f.over == "h2",
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			select {
			case conn := <-c.conn:
				return conn, nil
			default:
				return nil, fmt.Errorf("the client has no second connection")
			}
		},
	}}
	return c
}

// get sends a request, as a known caller or as nobody.
func (c *client) get(path string, known bool) (status int, err error) {
	scheme := "https"
	if c.full.over == "http" {
		scheme = "http"
	}
	req, err := http.NewRequestWithContext(c.full.t.Context(), http.MethodGet, scheme+"://"+c.full.address+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	if known {
		req.Header.Set("Authorization", "Bearer secret-of-known")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// wants sends a request, and waits until the server knows that the connection is idle again.
func (c *client) wants(path string, known bool, want int) {
	c.full.t.Helper()
	if status, err := c.get(path, known); err != nil || status != want {
		c.full.t.Fatalf("%s answers %d (%v), want %d", path, status, err, want)
	}
	testenv.Eventually(c.full.t, time.Minute, func() error {
		if state, _ := c.full.states.Load(c.from); state != http.StateIdle {
			return fmt.Errorf("the connection is %v", state)
		}
		return nil
	})
}

// begin sends a request that runs until the test ends it.
func (c *client) begin() (status chan string) {
	c.full.t.Helper()
	status = make(chan string, 1)
	go func() {
		code, err := c.get("/locks", true)
		status <- fmt.Sprint(code, " ", err)
	}()
	<-c.full.entered
	return status
}

// closed waits until the server has closed the connection.
func (c *client) closed() {
	c.full.t.Helper()
	if conn, unused := c.unused(); unused { // nobody reads it
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	select {
	case <-c.gone:
	case <-time.After(time.Minute):
		c.full.t.Fatal("the connection stays open")
	}
}

func (c *client) unused() (net.Conn, bool) {
	select {
	case conn := <-c.conn:
		return conn, true
	default:
		return nil, false
	}
}

// At the maximum of connections a new one takes the place of one without credentials so far,
// else of the one that is idle longest. None is closed under a request.
func TestAtTheMaximumIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"http", "https", "h2"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			f := newFull(t, over, 4)
			first, stranger, second, busy := f.connect(), f.connect(), f.connect(), f.connect()
			second.wants("/whoami", true, http.StatusOK)
			first.wants("/whoami", true, http.StatusOK)
			response := busy.begin()
			stranger.wants("/whoami", false, http.StatusUnauthorized) // it is the latest, and goes first

			third := f.connect()
			stranger.closed()
			third.wants("/whoami", true, http.StatusOK)
			silent := f.connect()
			second.closed() // idle longest
			f.connect().wants("/whoami", true, http.StatusOK)
			silent.closed() // it has sent nothing
			first.wants("/whoami", true, http.StatusOK)
			third.wants("/whoami", true, http.StatusOK)

			f.finish <- struct{}{}
			if got := <-response; got != "200 <nil>" {
				t.Errorf("the request that ran while connections were closed got %s", got)
			}
		})
	}
}

// Where a request runs on each connection, a new one is refused, until one is idle.
func TestBusyConnectionsAreNotClosed(t *testing.T) {
	t.Parallel()
	f := newFull(t, "http", 2)
	one, two := f.connect(), f.connect()
	responses := []chan string{one.begin(), two.begin()}
	f.connect().closed()
	f.finish <- struct{}{}
	f.finish <- struct{}{}
	for _, response := range responses {
		if got := <-response; !strings.HasPrefix(got, "200") {
			t.Errorf("a request got %s", got)
		}
	}
	testenv.Eventually(t, time.Minute, func() error {
		status, err := f.connect().get("/whoami", true)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
}
